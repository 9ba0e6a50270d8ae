"""Results as a tidy pandas DataFrame, one row a measurement."""

from __future__ import annotations

import os
from typing import Any

from posx.errors import UserError
from posx.study import results, series

_WHOLE = ("seed", "train_length", "length", "stride", "k", "tokens", "documents", "step", "params")


def load(*folders: str | os.PathLike) -> Any:
  """The rows of study or run folders as a DataFrame with typed columns, which `to_parquet` takes as it is.

  Columns are the fields of the rows, and `label`: the encoding, with the settings in which it differs from others of the
  name, and `variant`: the same for runs that differ by seed alone. A number that does not exist is missing, and `note`
  says why. `document_losses` holds a list in each row.

  Args:
    folders: the --workdir of studies or runs; newer rows replace older ones of the same measurement.

  Raises:
    UserError: if pandas is not there, a folder does not exist or has no rows.

  Example:
    >>> frame = load("runs/study")                                          # doctest: +SKIP
    >>> frame[frame.protocol == "nonoverlapping"].pivot_table("loss", "label", "length")  # doctest: +SKIP
  """
  try:
    import pandas
  except ImportError:
    raise UserError(
      "posx.study.load needs pandas, which is not installed: pip install -e '.[frames]' at the root of the repository"
    ) from None
  if not folders:
    raise UserError("posx.study.load needs a folder: the --workdir of a sweep or of a run")
  rows = [{"label": row[series.LABEL], "variant": row[series.VARIANT], **_public(row)} for row in series.read(folders)]
  frame = pandas.DataFrame(rows)
  # None of this is left to guessing: a column without any value would have no type.
  for name in frame.columns:
    if name in _WHOLE:
      frame[name] = frame[name].astype("Int64")
    elif name in results.NUMBERS or name == "factor":
      frame[name] = frame[name].astype("Float64")
    elif name == "bucket":
      frame[name] = [
        None if value is None or value != value else "-".join(map(str, results.bucket({"bucket": value}))) for value in frame[name]
      ]
      frame[name] = frame[name].astype("string")
    elif name == "written":
      frame[name] = pandas.to_datetime(frame[name])
    elif name != "document_losses":
      texts = all(isinstance(value, str) for value in frame[name].dropna())
      frame[name] = frame[name].astype("string") if texts else frame[name]
  return frame


def _public(row: results.Row) -> results.Row:
  return {name: value for name, value in row.items() if not name.startswith("_")}
