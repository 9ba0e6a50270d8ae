"""What every command shares: one line for a failure, its exit code, a traceback only with --debug; dotted overrides."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from posx.errors import PosxError, UserError


def run(main: Callable[[Sequence[str]], int | None], argv: Sequence[str] | None = None) -> None:
  """Calls `main(argv)` and exits; 0 done, 1 other, 2 usage or config, 3 corrupt, 4 busy, 75 stopped and resumable."""
  argv = list(sys.argv[1:] if argv is None else argv)
  debug = "--debug" in argv
  argv = [a for a in argv if a != "--debug"]
  try:
    code = main(argv) or 0
  except PosxError as error:
    if debug:
      raise
    code = error.exit_code
    print(f"{'' if code == 75 else 'error: '}{' '.join(str(error).split())}", file=sys.stderr)
  except KeyboardInterrupt:
    if debug:
      raise
    print("interrupted: run the same command again to continue", file=sys.stderr)
    code = 75
  except Exception as error:
    if debug:
      raise
    print(f"error: {type(error).__name__}: {' '.join(str(error).split())} (--debug shows where)", file=sys.stderr)
    code = 1
  sys.exit(code)


class Parser(argparse.ArgumentParser):
  """Arguments without abbreviations; what is wrong with them is a UserError of one line."""

  def __init__(self, **kwargs):
    super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **kwargs)
    self.add_argument("--debug", action="store_true", help="show the traceback of a failure")

  def error(self, message: str) -> NoReturn:
    raise UserError(f"{message}; see {self.prog} --help")


def split_overrides(argv: Sequence[str], prefix: str) -> tuple[list[str], list[str]]:
  """Takes `--prefix.a.b=value` and `--prefix.a.b value` out of the arguments.

  Returns:
    (overrides as 'a.b=value', all other arguments), each in the order given.

  Example:
    >>> split_overrides(["--config=c.py", "--config.train.steps=5", "--config.seed", "1"], "config")
    (['train.steps=5', 'seed=1'], ['--config=c.py'])
  """
  overrides, rest, waiting = [], [], list(argv)
  while waiting:
    argument = waiting.pop(0)
    if not argument.startswith(f"--{prefix}."):
      rest.append(argument)
      continue
    path, equals, value = argument[len(prefix) + 3 :].partition("=")
    if not equals:
      if not waiting or waiting[0].startswith("--"):
        raise UserError(f"--{prefix}.{path} needs a value: --{prefix}.{path}=VALUE")
      value = waiting.pop(0)
    overrides.append(f"{path}={value}")
  return overrides, rest
