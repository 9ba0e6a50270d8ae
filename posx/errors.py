"""Failures that a user can act on, each with the exit code of its kind."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class PosxError(Exception):
  """A failure with one clear line: what was given, what is allowed, what to do."""

  exit_code = 1


class UserError(PosxError, ValueError):
  """Bad usage, configuration or data choice."""

  exit_code = 2


class CorruptError(PosxError):
  """Data or a disk that cannot be trusted."""

  exit_code = 3


class BusyError(PosxError):
  """The working directory is in use by a live process."""

  exit_code = 4


class Stopped(PosxError):
  """Asked to stop before the end; the same command resumes."""

  exit_code = 75


def unknown(what: str, given: object, names: Iterable[str], listed: Iterable[str] | None = None) -> str:
  """One line: what was given, what it may have meant, what is known (`listed`, where `names` would be too many)."""
  names = list(names)
  near = difflib.get_close_matches(str(given), names, n=1, cutoff=0.6)
  hint = f"; did you mean {near[0]!r}?" if near else ";"
  return f"unknown {what} {given!r}{hint} known: {', '.join(names if listed is None else listed)}"
