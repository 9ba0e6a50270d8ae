"""The studies in configs/sweeps: they expand, they are what their names say, and the one for a CPU stays small."""

from collections import Counter
from pathlib import Path

import pytest

from posx import config as configs
from posx.errors import UserError
from posx.study import cost, sweep

FOLDER = Path("configs/sweeps")


@pytest.mark.parametrize("name, runs", [("kerple_table", 21), ("extensions", 3), ("share_kerple", 12), ("seeds", 20)])
def test_studies_come_in_two_sizes(name, runs):
  whole, small = (sweep.expand(f"{FOLDER}/{name}.py{argument}") for argument in ("", ":cpu"))
  assert len(whole) == runs and {run.config.partition(":")[0] for run in whole} == {"configs/base512.py"}
  assert {run.config.partition(":")[0] for run in small} == {"configs/quickstart.py"}
  assert [run.name for run in small] == [run.name for run in whole][: len(small)] or name == "extensions"
  assert f"{FOLDER}/{name}.py:cpu" in (FOLDER / f"{name}.py").read_text()


def test_the_table_has_seven_encodings_with_three_seeds():
  runs = sweep.expand(f"{FOLDER}/kerple_table.py")
  kinds = Counter((run.settings["encoding"]["name"], run.settings["encoding"].get("kernel")) for run in runs)
  assert len(kinds) == 7 and set(kinds.values()) == {3}
  shared = {run.settings["encoding"]["name"] for run in runs if run.settings["model"]["share_encoding"]}
  assert shared == {"t5", "kerple"}


def test_every_extension_that_serves_rope_and_needs_no_field_is_measured():
  (run,) = sweep.expand(f"{FOLDER}/extensions.py:cpu")
  asked = run.settings["eval"]["extensions"]
  assert {"pi", "pi:4", "pi:16", "yarn:16", "dynamic_yarn", "rerope", "log_n"} <= set(asked)
  # a table of learned positions, and factors by channel that nobody can guess
  assert not {"truncate", "longrope"} & {name.partition(":")[0] for name in asked}


def test_the_study_for_two_cores_fits_into_an_hour():
  runs = sweep.expand(f"{FOLDER}/cpu_study.py")
  assert Counter(run.settings["encoding"]["name"] for run in runs).most_common()[-1][1] == 3 and len(runs) == 24
  (extended,) = {run.settings["eval"]["extensions"] for run in runs if run.settings["encoding"]["name"] == "rope"}
  assert len(extended) == 16 and len({name.partition(":")[0] for name in extended}) == 8
  assert max(max(run.settings["eval"]["lengths"]) for run in runs) == 8192
  whole = [cost.cost(configs.load(run.config, dict(run.overrides))) for run in runs]
  # at 15 GFLOPs per second and core, half of what the quickstart was measured at
  assert sum(each.train_flops + (each.eval_flops or 0.0) for each in whole) < 2 * 3600 * 15e9


def test_fine_tuning_starts_from_the_run_that_is_given(tmp_path):
  with pytest.raises(UserError, match="nothing is no run folder; give the RoPE run to start from"):
    sweep.expand(f"{FOLDER}/finetune.py")
  (tmp_path / "config.json").write_text("{}")
  runs = sweep.expand(f"{FOLDER}/finetune.py:{tmp_path}")
  assert [run.name for run in runs] == [f"rope-{name}" for name in ("pi", "ntk", "ntk_by_parts", "yarn", "abf", "proportional")] + ["nope"]
  assert {run.settings["train"]["init_from"] for run in runs} == {str(tmp_path)}
