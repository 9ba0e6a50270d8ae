"""The comparison as a table for a LaTeX document: needs `booktabs`, nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from posx.study import table
from posx.study.series import Series

_SPECIAL = {
  "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
  "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}", "±": r"$\pm$", "|": r"\textbar{}",
}  # fmt: skip


def escape(text: str) -> str:
  """Text that LaTeX prints as it stands.

  Example:
    >>> escape("a_b ±1")
    'a\\\\_b $\\\\pm$1'
  """
  return "".join(_SPECIAL.get(c, c) for c in text)


def render(curves: Sequence[Series], caption: Sequence[str], label: str) -> str:
  """A `table` environment: one line a curve, the best of each length in bold, controls in small type."""
  head, *rows = table.grid(curves)
  lines = [
    r"% needs \usepackage{booktabs}",
    r"\begin{table}",
    r"  \centering",
    rf"  \caption{{{escape(' '.join(line.rstrip('.') + '.' for line in caption))}}}",
    rf"  \label{{{label}}}",
    rf"  \begin{{tabular}}{{l{'r' * (len(head) - 1)}}}",
    r"    \toprule",
    f"    {' & '.join(escape(text) for text, _ in head)} \\\\",
    r"    \midrule",
  ]
  lines += [f"    {' & '.join(_cell(text, style, i == 0) for i, (text, style) in enumerate(row))} \\\\" for row in rows]
  return "\n".join([*lines, r"    \bottomrule", r"  \end{tabular}", r"\end{table}", ""])


def _cell(text: str, style: str, first: bool) -> str:
  indent = r"\quad " if first and text.startswith("  ") else ""
  # A minus for what is missing would read as a number.
  made = escape(text.strip().rstrip("*")) if text.strip() != "-" else "--"
  if style == "bold":
    made = rf"\textbf{{{made}}}"
  return indent + (rf"{{\small {made}}}" if style == "dim" else made)
