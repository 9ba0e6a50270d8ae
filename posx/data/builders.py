"""The two corpora as data sets of tensorflow-datasets, prepared and read without TensorFlow and without a network.

Importing this module imports tensorflow-datasets; `posx.data` does so only while it prepares.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import tensorflow_datasets as tfds

from posx.data import files

_FEATURES = {"text": tfds.features.Text(), "name": tfds.features.Text()}


def _info(builder: tfds.core.DatasetBuilder, description: str, **about: Any) -> tfds.core.DatasetInfo:
  # disable_shuffling keeps the order of the keys, so that document i is the same on every machine.
  return tfds.core.DatasetInfo(
    builder=builder, description=description, features=tfds.features.FeaturesDict(_FEATURES), disable_shuffling=True, **about
  )


def _examples(documents: Iterable[tuple[str, str]]) -> Iterator[tuple[int, dict[str, str]]]:
  for i, (name, text) in enumerate(documents):
    yield i, {"text": text, "name": name}


class Sotu(tfds.core.GeneratorBasedBuilder):
  """State of the Union addresses and annual messages, 1790 to 2026, split by president."""

  VERSION = tfds.core.Version("1.0.0")

  def _info(self) -> tfds.core.DatasetInfo:
    return _info(
      self,
      "State of the Union addresses and annual messages, from the package sotu.",
      homepage="https://www.presidency.ucsb.edu/",
      license="texts: works of the United States government, public domain; package: MIT",
    )

  def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
    del dl_manager
    documents = files.sotu_documents(files.sotu_folder())
    return {split: self._generate_examples(documents[split]) for split in files.SPLITS}

  def _generate_examples(self, documents: Iterable[tuple[str, str]]) -> Any:
    return _examples(documents)


@dataclasses.dataclass
class TextConfig(tfds.core.BuilderConfig):
  """Which files; its name is the fingerprint of their contents."""

  files: tuple[Path, ...] = ()


class Text(tfds.core.GeneratorBasedBuilder):
  """The user's own UTF-8 text files, one document a file."""

  VERSION = tfds.core.Version("1.0.0")

  def _info(self) -> tfds.core.DatasetInfo:
    return _info(self, "Text files of the user.")

  def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
    del dl_manager
    return {split: self._generate_examples(split) for split in files.SPLITS}

  def _generate_examples(self, split: str) -> Any:
    config = self.builder_config
    assert isinstance(config, TextConfig)
    return _examples((name, text) for where, name, text in files.text_documents(list(config.files)) if where == split)
