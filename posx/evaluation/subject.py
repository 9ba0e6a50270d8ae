"""What is probed: the weights of a run under an encoding, extended or not, and a text to read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from posx import config as configs
from posx import data, decoder
from posx.checkpoint import restore_params
from posx.data.store import Corpus
from posx.data.synthetic import TaskCorpus
from posx.errors import UserError
from posx.evaluation import rows


class Subject(NamedTuple):
  """A run, restored. `config` has the extension asked for; `params` is {'params': ...}."""

  workdir: Path
  config: Any
  train_length: int
  params: Any
  step: int
  corpus: Corpus
  model: decoder.Decoder
  extension: Any

  @property
  def label(self) -> str:
    """'rope' or 'rope + yarn'."""
    return self.config.encoding.name + (f" + {type(self.extension).name}" if self.extension is not None else "")

  def identity(self, length: int) -> dict[str, Any]:
    """The fields of a row that say what it is of."""
    return rows.identity(self.workdir, self.config, self.train_length, self.extension, length, self.corpus, self.step, self.params)


def load(workdir: str | Path, changes: Mapping[str, Any], *, split: str = "", step: int | None = None, text: bool = True) -> Subject:
  """Restores a run.

  Args:
    workdir: the run folder.
    changes: overrides of its `extension` and `data` sections.
    split: of the text; '' for that of `config.eval`.
    step: which checkpoint; None for the last.
    text: whether documents are needed, which a task has not.

  Raises:
    UserError: for a folder or a change that does not fit.
  """
  params, trained, step = restore_params(workdir, step)
  config = configs.override(configs.from_json(configs.to_json(trained)), changes)
  configs.check(config)
  corpus = data.load(config.data, split or config.eval.split)
  if text and isinstance(corpus, TaskCorpus):
    raise UserError(f"{workdir} was trained on {config.data.name}, which has no documents to read; give a run of a text")
  params = params if "params" in params else {"params": params}
  model = decoder.from_config(config, corpus.vocab_size)
  return Subject(Path(workdir), config, trained.train.length, params, step, corpus, model, configs.extension(config))
