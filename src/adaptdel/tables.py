"""The table writers: the same rows for a terminal, Markdown, CSV and LaTeX; and how numbers are written."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from io import StringIO
from math import isfinite
from textwrap import wrap
from typing import Any

Row = Mapping[str, Any]
UNDEFINED = "–"
_HEADING_WIDTH = 12  # a longer heading is wrapped in a terminal, unless its cells are wider
_LATEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "−": "$-$",
    "–": "--", "≥": r"$\geq$", "≤": r"$\leq$", "₁₀": r"$_{10}$", "\u00a0": "~", "“": "``", "”": "''",
} | {char: f"\\{char}" for char in "&%$#_{}"}  # fmt: skip
_LATEX_PATTERN = re.compile("|".join(map(re.escape, _LATEX)))


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        title: the heading.
        keys: the values of a row that the column shows. A CSV file holds each once, in a column of its own.
        show: turns these values into text.
        best: "max" or "min" to emphasise the best number.
        number: whether the column holds numbers, which are right-aligned.
        strong: which rows to emphasise, in place of ``best``.
        about: what the values are.
    """

    title: str
    keys: tuple[str, ...]
    show: Callable[..., str] = str
    best: str | None = None
    number: bool = True
    strong: Callable[[Row], bool] | None = None
    about: str = ""

    def text(self, row: Row) -> str:
        """The cell of this column in a row; a dash if its first value is None or NaN."""
        values = [row[key] for key in self.keys]
        return UNDEFINED if values[0] is None or values[0] != values[0] else self.show(*values)


@dataclass(frozen=True)
class Table:
    """Rows under a caption; ``name`` is the name of its CSV file.

    Only rows with the same ``group`` are compared for the best number; a row whose group is None is never the best.
    """

    name: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Row]

    @property
    def definitions(self) -> list[tuple[str, str]]:
        """The columns that need an explanation, with it."""
        return [(column.title, column.about) for column in self.columns if column.about]

    def cells(self) -> list[list[tuple[str, bool]]]:
        """All cells, row by row: the text, and whether it is emphasised."""
        strong = [self._strong(column) for column in self.columns]
        return [
            [(column.text(row), place in strong[number]) for number, column in enumerate(self.columns)]
            for place, row in enumerate(self.rows)
        ]

    def _strong(self, column: Column) -> set[int]:
        """The rows to emphasise in a column: the best of each group, unless all rows of the group show the same."""
        if column.strong is not None:
            return {place for place, row in enumerate(self.rows) if column.strong(row)}
        shown = [column.text(row).split("±")[0] for row in self.rows]
        groups: dict[Any, dict[int, Any]] = {}
        for place, row in enumerate(self.rows):
            if column.best is not None and shown[place] != UNDEFINED and row.get("group", 0) is not None:
                groups.setdefault(row.get("group", 0), {})[place] = row[column.keys[0]]
        strong: set[int] = set()
        for values in groups.values():
            if len({shown[place] for place in values}) > 1:
                chosen = (max if column.best == "max" else min)(values, key=lambda place: values[place])
                strong |= {place for place in values if shown[place] == shown[chosen]}
        return strong

    def to_terminal(self) -> str:
        """Aligned columns for a terminal; long headings are wrapped."""
        body = [[terminal_text(text) for text, _ in line] for line in self.cells()]
        columns = []
        for place, column in enumerate(self.columns):
            cells = [line[place] for line in body]
            limit = max([_HEADING_WIDTH, *map(len, cells)])
            heading = [terminal_text(line) for line in wrap(column.title, limit, break_long_words=False)]
            width = max(map(len, [*heading, *cells]), default=0)
            columns.append((column, [*heading, *cells], len(heading), width))
        height = max((count for _, _, count, _ in columns), default=0)
        aligned = [
            [cell.rjust(width) if column.number else cell.ljust(width) for cell in [""] * (height - count) + cells]
            for column, cells, count, width in columns
        ]
        return "\n".join("  ".join(line).rstrip() for line in zip(*aligned, strict=True))

    def to_markdown(self) -> str:
        """A table in GitHub's Markdown, under its caption if it has one."""
        lines = [
            [markdown_text(column.title) for column in self.columns],
            ["---:" if column.number else ":---" for column in self.columns],
            *(
                [f"**{markdown_text(text)}**" if strong else markdown_text(text) for text, strong in line]
                for line in self.cells()
            ),
        ]
        caption = f"*{markdown_text(self.caption)}*\n\n" if self.caption else ""
        return caption + "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"

    def to_csv(self) -> str:
        """All values in full precision, each in a column of its own, which is named after its key."""
        out = StringIO()
        keys = list(dict.fromkeys(key for column in self.columns for key in column.keys))
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(keys)
        for row in self.rows:  # what is not finite is undefined
            values = [row[key] for key in keys]
            writer.writerow(["" if isinstance(value, float) and not isfinite(value) else value for value in values])
        return out.getvalue()

    def to_latex(self) -> str:
        """A LaTeX table with the rules of booktabs."""
        layout = "".join("r" if column.number else "l" for column in self.columns)
        head = " & ".join(latex_text(column.title) for column in self.columns)
        body = [
            " & ".join(rf"\textbf{{{latex_text(text)}}}" if strong else latex_text(text) for text, strong in line)
            for line in self.cells()
        ]
        about = [f"{title[:1].upper()}{title[1:]}: {text}" for title, text in self.definitions]
        caption = " ".join([self.caption, *about])
        lines = [
            r"\begin{table}[ht]", r"  \centering", r"  \small", rf"  \begin{{tabular}}{{{layout}}}", r"    \toprule",
            rf"    {head} \\", r"    \midrule", *(rf"    {line} \\" for line in body),
            r"    \bottomrule", r"  \end{tabular}", rf"  \caption{{{latex_text(caption)}}}",
            rf"  \label{{tbl:{self.name}}}", r"\end{table}",
        ]  # fmt: skip
        return "\n".join(lines) + "\n"


def text_table(titles: Sequence[str], rows: Sequence[Sequence[Any]], *, text_columns: int = 1) -> Table:
    """A table of cells that are texts already; all columns after the first ``text_columns`` hold numbers.

    >>> print(text_table(["method", "radius"], [["CERT-ED", "5.06"], ["AdaptDel", "7.38"]]).to_terminal())
    method    radius
    CERT-ED     5.06
    AdaptDel    7.38
    """
    columns = [Column(title, (str(place),), number=place >= text_columns) for place, title in enumerate(titles)]
    cells = [{str(place): cell for place, cell in enumerate(row)} for row in rows]
    return Table("", "", columns, cells)


def notebook_table(title: str, values: Mapping[str, Any]) -> str:
    """Names and values in HTML, as a notebook shows an object; what is None is left out.

    >>> notebook_table("Run", {"inputs": 3, "file": "<a>", "method": None})
    '<table><caption>Run</caption><tr><th>inputs</th><td>3</td></tr><tr><th>file</th><td>&lt;a&gt;</td></tr></table>'
    """
    rows = (
        f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>"
        for name, value in values.items()
        if value is not None
    )
    return f"<table><caption>{escape(title)}</caption>{''.join(rows)}</table>"


def terminal_text(text: str) -> str:
    r"""Text on one line without control characters.

    >>> terminal_text("a\x1b[31m\nb")
    'a�[31m b'
    """
    return "".join(char if char.isprintable() else "\ufffd" for char in re.sub(r"\s", " ", text))


def markdown_text(text: str) -> str:
    r"""Text that Markdown shows unchanged, on one line.

    >>> markdown_text("<b>a|b*")
    '&lt;b&gt;a\\|b\\*'
    """
    flat = " ".join(text.split())
    return re.sub(r"([\\`*_\[\]|#~])", r"\\\1", flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))


def latex_text(text: str) -> str:
    r"""Text that LaTeX shows unchanged.

    >>> latex_text("5% ± 1")
    '5\\% $\\pm$ 1'
    """
    return _LATEX_PATTERN.sub(lambda match: _LATEX[match[0]], text)


def percent(value: float, digits: int = 1) -> str:
    """A fraction as a percentage.

    >>> percent(0.8541)
    '85.4%'
    """
    return f"{100 * value:.{digits}f}%"


def signed(value: float, digits: int = 2) -> str:
    """A number with its sign.

    >>> signed(-0.5), signed(0.5), signed(0.001)
    ('−0.50', '+0.50', '0.00')
    """
    text = f"{value:+,.{digits}f}".replace("-", "−")
    return text if text.strip("+−0.") else text[1:]


def number(value: float, digits: int = 2) -> str:
    """A number with commas between thousands.

    >>> number(12345.678, 0)
    '12,346'
    """
    return f"{value:,.{digits}f}".replace("-", "−")


integer = partial(number, digits=0)


def with_error(mean: float, error: float | None) -> str:
    """A mean and its standard error, if there is one.

    >>> with_error(2.309, 0.05), with_error(2.309, None)
    ('2.31 ± 0.050', '2.31')
    """
    return number(mean) + (f" ± {error:.3f}" if error is not None and error == error else "")


def duration(seconds: float) -> str:
    """A time in milliseconds or seconds.

    >>> duration(0.012), duration(75)
    ('12.0 ms', '75.0 s')
    """
    return f"{1000 * seconds:#.3g}".rstrip(".") + " ms" if seconds < 0.9995 else f"{seconds:,.1f} s"


def listed(words: Sequence[str], last: str = "and") -> str:
    """Words as a list in a sentence.

    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"


def plural(count: float, noun: str) -> str:
    """A number with its noun.

    >>> plural(1, "edit"), plural(2.5, "edit")
    ('1 edit', '2.5 edits')
    """
    return f"{count:,g} {noun}" + ("" if count == 1 else "s")
