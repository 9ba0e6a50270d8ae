"""What every command shares: one line for a failure, its exit code, a traceback only with --debug."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from posx.errors import PosxError


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
    print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
    code = error.exit_code
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
