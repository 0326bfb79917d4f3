"""Tables: the same rows as Markdown, CSV, LaTeX and HTML; and the tables of a report."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from io import StringIO
from math import isfinite
from typing import Any

from adaptdel.report.entries import Entry
from adaptdel.report.measures import (
    STATISTICS,
    Difference,
    log_cardinality_curve,
    paired,
    paired_differences,
    radius_curve,
)

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


Differences = dict[str, tuple[int, dict[str, Difference]]]  # by the name of the run: common inputs, measures
_NAME = Column("run", ("run",), number=False)


def differences(entries: Sequence[Entry], baseline: Entry, *, resamples: int, seed: int) -> Differences:
    """Every other run against the baseline, on the inputs that both hold."""
    made: Differences = {}
    for entry in entries:
        if entry is not baseline:
            same = entry.run.manifest["unit"] == baseline.run.manifest["unit"]
            left, right = paired(entry.outcomes, baseline.outcomes, same_tokens=same)
            if entry.outcomes.labelled != baseline.outcomes.labelled:  # radii of wrong answers count in one of them
                left, right = left.take([]), right.take([])
            made[entry.name] = len(left), paired_differences(left, right, resamples=resamples, seed=seed)
    return made


def main_table(entries: Sequence[Entry]) -> Table:
    """The paper's main table."""
    columns = [
        _NAME,
        Column("clean accuracy", ("clean_accuracy",), percent, "max"),
        Column("mean radius", ("mean_radius", "mean_radius_se"), _with_error, "max"),
        Column("Wasserstein", ("wasserstein",), number, "min"),
        Column("median log₁₀ size", ("median_log_cardinality",), number, "max"),
        Column("quartiles of it", ("lower_log_cardinality", "upper_log_cardinality"), _between),
        Column("abstained", ("abstained", "inputs"), lambda count, size: percent(count / size) if size else "–"),
        Column("votes", ("calls",), lambda value: number(value, 0)),
        Column("time", ("seconds",), duration),
    ]
    rows = [{"run": entry.name, **entry.measures.to_dict()} for entry in entries]
    caption = (
        "What each run is worth. Mean certified radius with its standard error; Wasserstein distance between "
        "standardised radii and lengths (smaller: radii follow lengths better); log₁₀ of the size of the certified "
        "region; votes and time for an input. Wrong and abstained inputs count with 0."
    )
    return Table("main", caption, columns, rows)


def outcome_table(entries: Sequence[Entry]) -> Table:
    """What became of the inputs, each counted once."""
    columns = [
        _NAME,
        Column("inputs", ("inputs",), _count),
        Column("right, radius\u00a0≥\u00a01", ("certified", "inputs"), _count_and_share, "max"),
        Column("right, radius\u00a00", ("certified_zero", "inputs"), _count_and_share),
        Column("settled, wrong", ("wrong", "inputs"), _count_and_share),
        Column("abstained", ("abstained", "inputs"), _count_and_share),
        Column("of which right", ("abstained_right",), _count),
        Column("median radius if certified", ("median_certified_radius",), lambda value: f"{value:g}", "max"),
        Column("not usable", ("not_usable",), _count),
    ]
    rows = [
        {"run": e.name, **e.measures.to_dict(), "not_usable": e.outcomes.problems + e.outcomes.unlabelled}
        for e in entries
    ]
    caption = (
        "What became of the inputs. Certified at radius 0: right and settled, but one edit might change the answer. "
        "Abstained: the votes do not settle the answer, right or not. Not usable: rows that could not be read or have "
        "no label."
    )
    return Table("outcomes", caption, columns, rows)


def difference_table(found: Differences, baseline: Entry) -> Table:
    """Differences to the baseline with their intervals."""
    titles = (
        "clean accuracy",
        "certified at radius\u00a01",
        "mean radius",
        "median log₁₀ size",
        "Wasserstein",
        "votes",
    )
    columns = [_NAME, Column("common inputs", ("common",), _count)]
    for title, name in zip(titles, STATISTICS, strict=True):
        show = _points if "accuracy" in name else _whole if name == "calls" else _change
        keys = (name, f"{name}_low", f"{name}_high")
        columns.append(Column(title, keys, show, strong=lambda row, name=name: bool(row[f"{name}_clear"])))  # type: ignore[misc]
    rows = [{"run": name, "common": common} | _flat(measures) for name, (common, measures) in found.items()]
    caption = (
        f"Differences to {baseline.name} on the same inputs, with 95% intervals of the paired bootstrap; in bold where "
        "the interval leaves out 0. Accuracies in percentage points."
    )
    return Table("differences", caption, columns, rows)


def _flat(measures: Mapping[str, Difference]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, one in measures.items():
        flat |= {name: one.value, f"{name}_low": one.low, f"{name}_high": one.high, f"{name}_clear": one.clear}
    return flat


def quartile_table(entries: Sequence[Entry]) -> Table:
    """The measures by quartile of length."""
    columns = [
        _NAME,
        Column("quarter", ("quarter",), number=False),
        Column("lengths", ("shortest", "longest", "inputs"), _lengths),
        Column("inputs", ("inputs",), _count),
        Column("clean accuracy", ("clean_accuracy",), percent),
        Column("mean radius", ("mean_radius", "mean_radius_se"), _with_error),
        Column("median log₁₀ size", ("median_log_cardinality",), number),
        Column("quartiles of it", ("lower_log_cardinality", "upper_log_cardinality"), _between),
        Column("Wasserstein", ("wasserstein",), number),
        Column("abstained", ("abstained",), _count),
        Column("votes", ("calls",), lambda value: number(value, 0)),
        Column("time", ("seconds",), duration),
    ]
    rows = [
        {"quarter": quarter, "run": entry.name, **entry.quartiles[place].to_dict()}
        for place, quarter in enumerate(("shortest", "second", "third", "longest"))
        for entry in entries
    ]
    return Table("quartiles", "The same by quartile of the length of the inputs.", columns, rows)


def settings_table(entries: Sequence[Entry]) -> Table:
    """How the runs were made."""
    names = ("noise", "attacker", "bound", "alpha", "votes", "sampling", "seed", "unit", "model", "data", "finished")
    columns = [_NAME, *(Column(name, (name,), number=False) for name in names)]
    return Table("settings", "How the runs were made.", columns, [_settings(entry) for entry in entries])


def _settings(entry: Entry) -> Row:
    manifest = entry.run.manifest
    data, votes = manifest.get("data") or {}, manifest.get("votes")
    rate = manifest["noise"].get("rate") or manifest["noise"]
    return {
        "run": entry.name,
        "noise": ", ".join(f"{key} {_few(value)}" for key, value in rate.items()),
        "attacker": ", ".join(manifest["ops"]),
        "bound": manifest["bound"],
        "alpha": f"{manifest['alpha']:g}" if manifest.get("alpha") is not None else None,
        "votes": " + ".join(map(str, votes)) if isinstance(votes, (list, tuple)) else votes,
        "sampling": manifest.get("sampling"),
        "seed": manifest["seed"],
        "unit": " ".join(str(value) for value in (manifest["unit"] or {}).values()) or None,
        "model": str(manifest["model_hash"])[:12] or None,
        "data": f"{file_name(data)} {str(data.get('sha256') or '')[:12]}".strip() or None,
        "finished": manifest.get("finished") or "no",
    }


def file_name(data: Mapping[str, Any]) -> str:
    """The name of a data file without its folders."""
    return str(data.get("path") or "").replace("\\", "/").rstrip("/").rsplit("/", 1)[-1]


def _few(value: Any) -> str:
    values = value if isinstance(value, (list, tuple)) else [value]
    text = "/".join(f"{one:.6g}" if isinstance(one, (int, float)) else str(one) for one in values[:8])
    return text + ("/…" if len(values) > 8 else "")


def curves(entries: Sequence[Entry]) -> Table:
    """Certified accuracy at every radius and log-cardinality, for other programs."""
    columns = [Column(name, (name,)) for name in ("run", "against", "threshold", "certified_accuracy")]
    return Table("curves", "Certified accuracy", columns, list(_points_of_curves(entries)))


def _points_of_curves(entries: Sequence[Entry]) -> Iterator[Row]:
    for entry in entries:
        for against, curve in (("radius", radius_curve), ("log10_cardinality", log_cardinality_curve)):
            for threshold, share in zip(*curve(entry.outcomes), strict=True):
                yield {
                    "run": entry.name,
                    "against": against,
                    "threshold": threshold.item(),
                    "certified_accuracy": float(share),
                }


def _count(value: int) -> str:
    return f"{value:,}"


def _count_and_share(value: int, size: int) -> str:
    return f"{value:,} ({percent(value / size)})" if size else f"{value:,}"


def _with_error(mean: float, error: float | None) -> str:
    return number(mean) + (f" ± {error:.3f}" if error is not None else "")


def _between(low: float, high: float) -> str:
    return f"{number(low)} – {number(high)}"


def _lengths(shortest: int, longest: int, size: int) -> str:
    return f"{shortest:,} – {longest:,}" if size else "–"


def _interval(low: float, high: float, digits: int) -> str:
    return f" [{signed(low, digits)}, {signed(high, digits)}]" if low == low else ""


def _points(value: float, low: float, high: float) -> str:
    return signed(100 * value, 1) + _interval(100 * low, 100 * high, 1)


def _change(value: float, low: float, high: float) -> str:
    return signed(value) + _interval(low, high, 2)


def _whole(value: float, low: float, high: float) -> str:
    return signed(value, 0) + _interval(low, high, 0)
