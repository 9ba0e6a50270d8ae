"""Measures posx and its peers against the definitions and writes docs/conformance.md.

    python -m conformance                 measures everything, writes docs/conformance.md
    python -m conformance --check         measures, writes nothing; exit code 1 where a line is no longer true
    python -m conformance --list          lists the methods without a peer anew, measures nothing; needs no peers

Needs the peers: pip install -c constraints.txt -e '.[peers]'. `scripts/conformance` does it with all set-up.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

from posx import cli
from posx.errors import UserError

PAGE = Path(__file__).resolve().parents[1] / "docs" / "conformance.md"
PEERS = ("torch", "transformers", "x_transformers", "rotary_embedding_torch")


def main(argv: Sequence[str]) -> int:
  parser = cli.Parser(prog="python -m conformance", description=__doc__)
  parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 where a line is no longer true")
  parser.add_argument("--list", action="store_true", help="only list the methods without a peer anew")
  args = parser.parse_args(argv)
  if args.list:
    from conformance import page

    PAGE.write_text(page.relisted(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0
  missing = [name.replace("_", "-") for name in PEERS if importlib.util.find_spec(name) is None]
  if missing:
    raise UserError(f"not installed: {', '.join(missing)}; run scripts/conformance, or pip install -c constraints.txt -e '.[peers]'")

  from conformance import angles, oracles, page
  from conformance.rows import failures, measure

  measured, wrong = {}, []
  for title, comparisons in page.PARTS.items():
    measured[title] = []
    for comparison in comparisons:
      result = measure(comparison)
      measured[title].append((comparison, result))
      wrong += failures(comparison, result)
      print("  ".join(cell for cell in page.row(comparison, result)), flush=True)
  errors = {base: angles.errors(base) for base in angles.BASES}
  for base, found in errors.items():
    print(f"angles, base {base:,.0f}: " + ", ".join(f"{name} {page.number(each[-1])}" for name, each in found.items()), flush=True)
    if not max(found["posx"]) <= angles.CLAIM:
      wrong.append(f"angles, base {base:,.0f}: posx is {max(found['posx']):.2g} from float64, allowed {angles.CLAIM:.2g}")
  lines = sum(map(len, measured.values()))
  if not args.check:
    PAGE.write_text(page.render(measured, errors, oracles.unnoticed(oracles.cases())), encoding="utf-8")
    print(f"{lines} comparisons; wrote {PAGE.relative_to(PAGE.parents[1])}")
  for line in wrong:
    print(f"not true: {line}", file=sys.stderr)
  print(f"{lines} comparisons, {len(wrong)} no longer true")
  return 1 if wrong else 0


if __name__ == "__main__":
  cli.run(main)
