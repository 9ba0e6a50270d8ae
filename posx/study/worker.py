"""One run of a study in one process: train, then evaluate what `config.eval` asks for.

    python -m posx.study.worker --config=configs/NAME.py:ARG --workdir=DIR [--config.field=value ...]

What is done already is skipped; what was cut off goes on. The process ends with its parent, so that a study that was
killed leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from posx import cli, hosts, runtime
from posx.errors import BusyError, Stopped, UserError
from posx.evaluation.windows import fitting
from posx.files import read_json, write_atomic
from posx.study import results
from posx.study.names import spell
from posx.study.spent import spending

MARKER = "evaluated.json"
"""In the run folder: the requests that have been answered."""

PARENT = "POSX_STUDY_PROCESS"

_LOCK = ".worker"
_PATIENCE_S = 60.0

Request = dict[str, Any]


def requests(settings: Mapping[str, Any]) -> list[Request]:
  """The evaluations of one run: the weights as trained, then under each extension of `config.eval.extensions`.

  'yarn' leaves the factor to the evaluation (length / trained length), 'yarn:8' fixes it.
  """
  asked = {name: value for name, value in settings.get("eval", {}).items() if name != "extensions"}
  extensions = dict.fromkeys(["", *settings.get("eval", {}).get("extensions", ())])
  # As JSON gives it back, so that what was asked compares with what was answered.
  return json.loads(json.dumps([{"extension": extension, **asked} for extension in extensions]))


def arguments(workdir: str, request: Request) -> list[str]:
  """The command line of `experiments.evaluate` for one request."""
  # All settings, for they may have changed since the run was made, which keeps its own.
  fields = {field: spell(value) for field, value in request.items() if field != "extension"}
  if "targets" in fields:
    fields["targets"] = str(fitting(request["targets"], request["lengths"]))
  fields |= {"controls": fields["controls"] or "none"} if "controls" in fields else {}
  argv = [f"--workdir={workdir}", "--beyond=note", *(f"--{field}={value}" for field, value in fields.items())]
  name, _, factor = request["extension"].partition(":")
  argv += [f"--extension={name}"] if name else []
  return argv + ([f"--extension.factor={factor}"] if factor else [])


def answered(folder: str | os.PathLike) -> list[Request]:
  """The requests that the run folder has results of."""
  folder = Path(folder)
  if not (folder / results.FILE).exists():
    return []
  return read_json(folder / MARKER) or []


def trained(folder: str | os.PathLike) -> bool:
  """Whether training has come to its end."""
  return (read_json(Path(folder) / "status.json") or {}).get("state") == "done"


def finished(folder: str | os.PathLike, settings: Mapping[str, Any]) -> bool:
  """Whether nothing is left to do for this run."""
  done = answered(folder)
  return trained(folder) and all(request in done for request in requests(settings))


def watch_parent(patience_s: float = 30.0) -> None:
  """Ends this process, politely and then not, once the process that started it is gone."""
  # Told by the launcher, lest it has died before this line.
  parent = int(os.environ.get(PARENT, os.getppid()))

  def watch() -> None:
    while os.getppid() == parent:
      time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(patience_s)
    os._exit(75)

  threading.Thread(target=watch, daemon=True).start()


def hold(folder: Path, patience_s: float = _PATIENCE_S) -> Any:
  """The lock of the run, waiting for a worker whose study was killed to finish its last step."""
  folder.mkdir(parents=True, exist_ok=True)
  lock = open(folder / _LOCK, "w")
  end = time.monotonic() + patience_s
  while True:
    try:
      fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
      return lock
    except BlockingIOError:
      if time.monotonic() > end:
        raise BusyError(f"another process still works in {folder}; stop it first") from None
      time.sleep(0.2)


def main(argv: Sequence[str]) -> int:
  """Trains and evaluates; returns the exit code."""
  parser = cli.Parser(prog="python -m posx.study.worker", description=__doc__)
  parser.add_argument("--config", required=True, metavar="FILE.py:ARG")
  parser.add_argument("--workdir", required=True, metavar="DIR")
  overrides, rest = cli.split_overrides(argv, "config")
  args = parser.parse_args(rest)
  watch_parent()
  signal.signal(signal.SIGTERM, _stop)
  # Of the processes of a run on several hosts the first has the lock, and evaluates.
  with hold(Path(args.workdir)) if hosts.rank() == 0 else contextlib.nullcontext():
    return _work(args.config, args.workdir, overrides)


def _stop(number: int, frame: Any) -> None:
  # Training has its own handler, which saves first; rows of an evaluation are safe once they are written.
  raise Stopped("stopped; the same command continues")


def _work(config: str, workdir: str, overrides: Sequence[str]) -> int:
  from posx import config as configs

  settings = configs.load(config, list(overrides)).to_dict()
  compilations = runtime.count_compilations()
  if not trained(workdir):
    from experiments import train

    kept = [f"--config.{field}" for field in [*overrides, *_evaluation_of(workdir)]]
    with spending(workdir, "training", compilations) if hosts.rank() == 0 else contextlib.nullcontext():
      code = train.main([f"--config={config}", f"--workdir={workdir}", *kept])
    if code:
      return code
  if hosts.rank():
    return 0
  refused = []
  for request in requests(settings):
    if request not in answered(workdir):
      try:
        with spending(workdir, "evaluation", compilations):
          _evaluate(workdir, request)
      except UserError as error:
        # The others do not depend on it.
        refused.append(f"evaluation {'under ' + request['extension'] if request['extension'] else 'as trained'}: {error}")
  if refused:
    raise UserError("; ".join(refused))
  return 0


def _evaluate(workdir: str, request: Request) -> None:
  from experiments import evaluate

  if "targets" in request and (fits := fitting(request["targets"], request["lengths"])) != request["targets"]:
    print(f"config.eval.targets={request['targets']} exceeds these windows: {fits} are used", flush=True)
  code = evaluate.main(arguments(workdir, request))
  if code or not (Path(workdir) / results.FILE).exists():
    raise UserError(f"the evaluation of {workdir} ended with code {code or 0} and wrote no rows")
  write_atomic(Path(workdir) / MARKER, json.dumps([*answered(workdir), request]))


def _evaluation_of(workdir: str) -> list[str]:
  """Overrides with which a run goes on that was started under another `config.eval`: weights do not depend on it."""
  saved = (read_json(Path(workdir) / "config.json") or {}).get("eval", {})
  return [f"eval.{field}={spell(value)}" for field, value in saved.items()]


if __name__ == "__main__":
  # `python -m` has put the current folder first on the path, where the mains are.
  cli.run(main, sys.argv[1:])
