"""Tables: the same rows as Markdown, CSV, LaTeX and HTML."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from io import StringIO
from math import isfinite
from typing import Any

Row = Mapping[str, Any]
NOTHING = "–"
_LATEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "−": "$-$",
    "–": "--", "≥": r"$\geq$", "≤": r"$\leq$", "₁₀": r"$_{10}$", "\u00a0": "~", "“": "``", "”": "''",
} | {char: f"\\{char}" for char in "&%$#_{}"}  # fmt: skip
_LATEX_PATTERN = re.compile("|".join(map(re.escape, _LATEX)))


@dataclass(frozen=True)
class Column:
    """A column: what it is called, which values of a row it shows, and how.

    Attributes:
        title: its heading.
        keys: the values that it shows, which a CSV holds one by one.
        show: those values as text.
        best: "max" or "min" if the best number is to stand out.
        number: whether it holds numbers, which stand to the right.
        strong: which rows are to stand out, if that is not a matter of the best number.
    """

    title: str
    keys: tuple[str, ...]
    show: Callable[..., str] = str
    best: str | None = None
    number: bool = True
    strong: Callable[[Row], bool] | None = None

    def text(self, row: Row) -> str:
        """What the column shows of a row."""
        values = [row[key] for key in self.keys]
        return NOTHING if values[0] is None or values[0] != values[0] else self.show(*values)


@dataclass(frozen=True)
class Table:
    """Rows under a caption; ``name`` is that of its file."""

    name: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Row]

    def best(self, column: Column) -> set[int]:
        """The rows that stand out in a column: the best, unless all rows show the same."""
        if column.strong is not None:
            return {place for place, row in enumerate(self.rows) if column.strong(row)}
        if column.best is None:
            return set()
        shown = [column.text(row).split("±")[0] for row in self.rows]
        values = {place: row[column.keys[0]] for place, row in enumerate(self.rows) if shown[place] != NOTHING}
        if len({shown[place] for place in values}) < 2:
            return set()
        chosen = (max if column.best == "max" else min)(values, key=lambda place: values[place])
        return {place for place in values if shown[place] == shown[chosen]}

    def cells(self, mark: Callable[[str], str], clean: Callable[[str], str]) -> list[list[str]]:
        """Every cell as text: cleaned for its format, and marked if it is the best of its column."""
        best = [self.best(column) for column in self.columns]
        return [
            [mark(clean(c.text(row))) if place in best[n] else clean(c.text(row)) for n, c in enumerate(self.columns)]
            for place, row in enumerate(self.rows)
        ]

    def to_markdown(self) -> str:
        """A table of GitHub's Markdown, with its caption above."""
        lines = [
            [markdown_text(column.title) for column in self.columns],
            ["---:" if column.number else ":---" for column in self.columns],
            *self.cells(lambda text: f"**{text}**", markdown_text),
        ]
        return f"*{markdown_text(self.caption)}*\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"

    def to_csv(self) -> str:
        """All values in full, one a column."""
        out = StringIO()
        keys = [key for column in self.columns for key in column.keys]
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(keys)
        writer.writerows([_plain(row[key]) for key in keys] for row in self.rows)
        return out.getvalue()

    def to_latex(self) -> str:
        """A table with booktabs' rules."""
        layout = "".join("r" if column.number else "l" for column in self.columns)
        head = " & ".join(latex_text(column.title) for column in self.columns)
        body = [" & ".join(line) for line in self.cells(lambda text: rf"\textbf{{{text}}}", latex_text)]
        lines = [
            r"\begin{table}[ht]", r"  \centering", r"  \small", rf"  \begin{{tabular}}{{{layout}}}", r"    \toprule",
            *(rf"    {line} \\" for line in [head]), r"    \midrule", *(rf"    {line} \\" for line in body),
            r"    \bottomrule", r"  \end{tabular}", rf"  \caption{{{latex_text(self.caption)}}}",
            rf"  \label{{tbl:{self.name}}}", r"\end{table}",
        ]  # fmt: skip
        return "\n".join(lines) + "\n"

    def to_html(self) -> str:
        """A table in a box of its own that scrolls sideways where the screen is narrow."""
        kinds = ["n" if column.number else "t" for column in self.columns]
        head = "".join(
            f'<th scope="col" class="{kind}">{escape(column.title)}</th>'
            for kind, column in zip(kinds, self.columns, strict=True)
        )
        body = "\n".join(
            "<tr>"
            + "".join(f'<td class="{kind}">{cell}</td>' for kind, cell in zip(kinds, line, strict=True))
            + "</tr>"
            for line in self.cells(lambda text: f"<strong>{text}</strong>", _html_text)
        )
        name = escape(self.name)
        return (
            f'<div class="sheet"><p class="caption" id="{name}-caption">{escape(self.caption)}</p>'
            f'<div class="scroll" tabindex="0" role="region" aria-labelledby="{name}-caption">'
            f'<table aria-labelledby="{name}-caption">'
            f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div></div>"
        )


def _html_text(text: str) -> str:
    """Escaped; an interval stands on a line of its own."""
    return re.sub(r" (\[[^\[\]]*\])$", r"<small>\1</small>", escape(text))


def _plain(value: Any) -> Any:
    return "" if value is None or (isinstance(value, float) and not isfinite(value)) else value


def markdown_text(text: str) -> str:
    r"""Text that Markdown shows as it is, on one line.

    >>> markdown_text("<b>a|b*")
    '&lt;b&gt;a\\|b\\*'
    """
    flat = " ".join(text.split())
    return re.sub(r"([\\`*_\[\]|#~])", r"\\\1", flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))


def latex_text(text: str) -> str:
    r"""Text that LaTeX shows as it is.

    >>> latex_text("5% ± 1")
    '5\\% $\\pm$ 1'
    """
    return _LATEX_PATTERN.sub(lambda found: _LATEX[found[0]], text)


def percent(value: float, digits: int = 1) -> str:
    """A share as a percentage.

    >>> percent(0.8541)
    '85.4%'
    """
    return f"{100 * value:.{digits}f}%"


def signed(value: float, digits: int = 2) -> str:
    """A number with its sign.

    >>> signed(-0.5), signed(0.5), signed(0.001)
    ('−0.50', '+0.50', '0.00')
    """
    text = f"{value:+.{digits}f}".replace("-", "−")
    return text if text.strip("+−0.") else text[1:]


def number(value: float, digits: int = 2) -> str:
    """A number with its thousands apart.

    >>> number(12345.678, 0)
    '12,346'
    """
    return f"{value:,.{digits}f}".replace("-", "−")


def duration(seconds: float) -> str:
    """A time in the unit that suits it.

    >>> duration(0.012), duration(75)
    ('12.0 ms', '75.0 s')
    """
    return f"{1000 * seconds:#.3g}".rstrip(".") + " ms" if seconds < 0.9995 else f"{seconds:,.1f} s"
