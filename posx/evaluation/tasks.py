"""Length generalisation on a synthetic task: exact match and accuracy per token against the length of the window."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from posx import config as configs
from posx import decoder
from posx.data.synthetic import TaskCorpus
from posx.errors import UserError
from posx.evaluation import answers, protocols, rows
from posx.study.results import Row

PROTOCOL = "task"


def evaluate(
  workdir: Path, config: Any, trained: Any, params: Any, corpus: TaskCorpus, step: int, beyond: str, say: Callable[[str], None] = print
) -> list[Row]:
  """A row for each length; its windows are filled by `config.eval.documents` instances that training never sees.

  Args:
    workdir: the run folder.
    config: with `eval` and `extension` to evaluate under.
    trained: the configuration of the run.
    params: {'params': ...}.
    corpus: the task.
    step: of the weights.
    beyond: 'error' or 'note', for a length that the encoding cannot serve.
    say: receives a line for each length.

  Raises:
    UserError: for a length that the encoding cannot serve, unless it is to be noted.
  """
  model = decoder.from_config(config, corpus.vocab_size)
  extension, made = configs.extension(config), list[Row]()
  if config.eval.documents < 1:
    raise UserError("a task has instances without end; give eval.documents, how many of each length")
  for length in sorted(set(config.eval.lengths)):
    full = corpus.task.rows(np.arange(config.eval.documents), seed=0, split=corpus.split, length=length, full=True)
    # all instances of a size are laid out alike, and padding behind the last answer is left away
    places = np.flatnonzero(full["weights"][0])
    tokens, targets = full["tokens"][:, : places[-1] + 1], full["targets"][:, places]
    try:
      fields = answers.score(model, params, tokens, targets, places, answers.positions(config, len(tokens), tokens.shape[1])).fields()
    except UserError as error:
      if beyond == "error":
        raise
      fields = answers.nothing(len(targets), targets.shape[1], str(error))
    made.append({
      **rows.identity(workdir, config, trained.train.length, extension, length, corpus, step, params),
      **fields,
      "protocol": PROTOCOL,
      "control": "",
      "items": corpus.task.items(length),
      "target_hash": protocols.target_hash(targets),
    })  # fmt: skip
    if fields["loss"] is not None:
      size = f"{corpus.task.items(length)} items, {length} tokens"
      say(f"{config.encoding.name}, {corpus.dataset}, {size}: {fields['exact']:.1%} exact, {fields['accuracy']:.1%} of the answers' tokens")
  return made
