"""Verify a run: recompute every certificate in ball arithmetic, and compare everything else with it.

Whatever can be derived is derived again: columns from the votes, looks from the plan that the manifest states, totals
from the rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime
from math import isclose, isfinite, sqrt
from typing import Any

from adaptdel.certification.certificate import Certificate, Rule
from adaptdel.certification.sampling import (
    AT_ONCE,
    EXACT_COPIES,
    LEAD,
    LEAST_VOTES,
    SamplingPlan,
    doubling_looks,
    plan_looks,
)
from adaptdel.certification.verify import too_much, verify
from adaptdel.core.cardinality import ROBERTA_VOCABULARY, log10_cardinality
from adaptdel.core.checks import STEPS, TooMuchWork, limited
from adaptdel.core.confidence import Looks
from adaptdel.core.noise import noise_from_dict
from adaptdel.core.threat import Threat
from adaptdel.runs.inputs import key_of
from adaptdel.runs.manifest import check_complete
from adaptdel.runs.records import (
    CERTIFICATES,
    Record,
    Totals,
    certificate_of,
    label_text,
    values_of,
    with_current_labels,
)
from adaptdel.runs.repeats import RepeatIndex
from adaptdel.runs.storage import Run

ALPHA_ERROR = 1e-12  # relative rounding error of a scaled level


def audit(
    run: Run, *, work: int | None = STEPS, note: Callable[[str], None] = lambda text: None
) -> Iterator[tuple[str, list[str]]]:
    """Yield the errors of every row that has a certificate, with the name of the row; then those of the whole run.

    ``work`` is that of `adaptdel.certification.verify.verify`; ``note`` is called with remarks that are no errors.
    """
    wrong = check_stated(run.manifest)
    if wrong:
        yield "the run", wrong
        return
    stated = StatedPlan(run.manifest)
    classes = [label_text(label) for label in run.manifest["classes"]]
    totals, readable = Totals.of(run.manifest), True
    with RepeatIndex() as same_input, RepeatIndex() as same_votes:
        unlike = _unlike(run, same_input, same_votes)
        next_unlike = next(unlike, None)
        for place, stored in enumerate(run.records(), start=1):
            record = with_current_labels(stored)
            problem = _problem(record)
            is_unlike = place == next_unlike
            if is_unlike:
                next_unlike = next(unlike, None)
            if record["problem"] is None:
                problem = check_record(stated, record, classes, work)
                problem = problem or ([_UNLIKE] if is_unlike else []) or _no_hash(record)
                yield f"row {record['row']} (id {shown(record['id'])})", problem
            elif problem:
                yield f"row {record['row']}", problem
            try:
                totals.add(record)
            except TypeError:  # a null, which has been reported
                readable = False
    wrong = _whole(run) + (_totals(run, totals) if readable else [])
    if wrong:
        yield "the run", wrong
    if stated.guessed:
        note(
            f"{stated.guessed} of its certificates were recertified more than once, and the manifest does not state "
            "their plan: the form of their looks was checked, not their sizes"
        )


def shown(text: str | None) -> str:
    """An id in printable characters, so that no file can send control sequences to the terminal.

    >>> print(shown("a7"), shown("a" + chr(9)) == ascii("a" + chr(9)))
    a7 True
    """
    if text is None or (text.isprintable() and len(text) <= 100):
        return str(text)
    return ascii(text if len(text) <= 100 else text[:97] + "...")


def _few(sizes: tuple[int, ...]) -> str:
    return ", ".join(map(str, sizes[:8])) + (", ..." if len(sizes) > 8 else "")


def check_stated(manifest: dict[str, Any]) -> list[str]:
    """List what is wrong with a manifest: it must be complete before rows are compared with it."""
    wrong = check_complete(manifest)
    if wrong:
        return wrong
    if manifest["alpha"] == 0:
        wrong.append("alpha must be in (0, 1), got 0")
    if manifest["vocab_size"] != ROBERTA_VOCABULARY:
        wrong.append(f"vocab_size is {manifest['vocab_size']}, but regions are counted for {ROBERTA_VOCABULARY} words")
    return wrong


class StatedPlan:
    """The sampling plan that a manifest states: that of the original run if it was recertified."""

    def __init__(self, manifest: dict[str, Any]) -> None:
        self.manifest, self.alpha = manifest, float(manifest["alpha"])
        self.noise = noise_from_dict(manifest["noise"])
        self.n_select, self.n_estimate = manifest["votes"]
        self.adaptive = manifest["sampling"] == "adaptive"
        self.classes = len(manifest["classes"])
        source = manifest.get("source")
        planned = manifest if source is None else source.get("planned") or source
        self.certain = source is None or source.get("planned") is not None
        self.guessed = 0  # certificates whose plan is not stated
        rule = Rule(self.noise, Threat(planned["ops"]).ops, manifest["bound"], manifest["threshold"])
        self.plan = SamplingPlan(
            rule,
            alpha=float(planned["alpha"]),
            n_select=self.n_select,
            n_estimate=self.n_estimate,
            sampling=manifest["sampling"],
            seed=manifest["seed"],
            exact=self.adaptive,
        )

    def wrong(self, certificate: Certificate) -> list[str]:
        """List the differences between a certificate's votes and looks and the plan."""
        copies = self.noise.choices(certificate.length)
        if certificate.exact is not None:
            return [] if self.adaptive else ["inputs are not enumerated under fixed sampling"]
        assert certificate.looks is not None
        taken, planned = len(certificate.votes), len(certificate.looks.sizes)
        if self.adaptive and (copies <= AT_ONCE or (copies <= EXACT_COPIES and (taken > 1 or planned == 1))):
            return [f"an input of {certificate.length} tokens is enumerated under adaptive sampling, not sampled"]
        return self._wrong_selection(certificate) or self._wrong_looks(certificate, certificate.looks)

    def _wrong_selection(self, certificate: Certificate) -> list[str]:
        """Check that the selection ended when the plan allows it."""
        counts, most = certificate.selection, self.n_select
        size = sum(counts)
        sizes = {most} if not self.adaptive else {min(32 << step, most) for step in range(most.bit_length())}
        if size not in sizes:
            return [f"the selection took {size} votes, which is not planned for {most}"]
        if certificate.threshold is None:
            first, second = sorted(counts, reverse=True)[:2]
            lead = float(first - second)
        else:
            lead = 2 * abs(float(counts[1]) - certificate.threshold * size)
        if size < most and lead < LEAD * sqrt(size):
            return [f"the selection ended after {size} of {most} votes without a clear lead"]
        return []

    def _wrong_looks(self, certificate: Certificate, looks: Looks) -> list[str]:
        """Check that the looks are the planned ones, at the run's alpha."""
        most = self.n_estimate + self.n_select - sum(certificate.selection)
        expected = plan_looks(self.plan, certificate.length, self.classes, most)
        if looks.sizes != expected.sizes and not self.certain and self._same_form(looks, most):
            self.guessed += 1
            return []
        if looks.sizes != expected.sizes:
            return [f"looks were planned after {_few(expected.sizes)} votes, not after {_few(looks.sizes)}"]
        if not self._same_levels(looks, expected.alphas):
            return [f"the levels of the looks are not those that were planned for alpha {self.alpha:g}"]
        return []

    def _same_levels(self, looks: Looks, planned: tuple[float, ...]) -> bool:
        scale = self.alpha / sum(planned)
        return len(planned) == len(looks.alphas) and all(
            isclose(level, share * scale, rel_tol=ALPHA_ERROR)
            for level, share in zip(looks.alphas, planned, strict=True)
        )

    def _same_form(self, looks: Looks, most: int) -> bool:
        """Whether looks have the form that adaptive sampling plans for some alpha and threat."""
        if not self.adaptive or (len(looks.sizes) > 1 and looks.sizes[0] < LEAST_VOTES):
            return False
        expected = doubling_looks(looks.sizes[0], most, self.alpha)
        return looks.sizes == expected.sizes and self._same_levels(looks, expected.alphas)


def check_record(stated: StatedPlan, record: Record, classes: list[str], work: int | None = STEPS) -> list[str]:
    """List what is wrong with a row: its certificate, or a column that does not follow from it."""
    try:
        certificate = certificate_of(stated.manifest, record)
    except (ValueError, RecursionError) as error:
        return [f"not a certificate: {error}"]
    wrong = verify(values_of(certificate, record), work=work)
    try:
        with limited(work):
            return wrong + stated.wrong(certificate) + _columns(stated, certificate, record, classes)
    except TooMuchWork:
        return [too_much(certificate.length, work)]
    except ValueError as error:
        return [*wrong, str(error)]


def _columns(stated: StatedPlan, certificate: Certificate, record: Record, classes: list[str]) -> list[str]:
    """List the columns that do not follow from the votes and the stated radius."""
    wrong = []
    if record["truth"] is not None and record["truth"] not in classes:
        wrong.append(f"the label {shown(record['truth'])} in the column truth is not one of the classes")
    expected = _expected(certificate, record)
    wrong += [f"{name} is {record[name]}, not {value}" for name, value in expected.items() if record[name] != value]
    area = _area(certificate, record["radius"])
    if record["log10_cardinality"] != area and not isclose(record["log10_cardinality"], area, rel_tol=1e-9):
        wrong.append(f"log10_cardinality is {record['log10_cardinality']}, not {area}")
    if certificate.alpha > stated.alpha * (1 + ALPHA_ERROR):
        wrong.append(f"its alpha is {certificate.alpha:g}, above that of the run, {stated.alpha:g}")
    return wrong


def _expected(certificate: Certificate, record: Record) -> dict[str, Any]:
    """The columns that follow from the votes and the stated radius without rounding."""
    label = record["truth"]
    return {
        "abstained": record["radius"] < 0,
        "correct": None if label is None else label == record["answer"],
        "rate": certificate.noise.share_removed(certificate.length),
        "calls": certificate.calls,
    }


def _area(certificate: Certificate, radius: int) -> float:
    """log10 of the number of inputs within a radius."""
    return log10_cardinality(max(radius, -1), length=certificate.length, ops=certificate.ops)


def _problem(record: Record) -> list[str]:
    """Check that a row with a problem has no other columns."""
    if record["problem"] is None:
        return []
    others = [name for name in CERTIFICATES.names if name not in ("id", "row", "problem") and record[name] is not None]
    return [f"a row with a problem must have no {', '.join(others)}"] if others else []


_UNLIKE = "another row of the same input has other votes, though noise depends on the seed and the input alone"


def _no_hash(record: Record) -> list[str]:
    return [] if record["input_hash"] else ["input_hash must not be empty"]


def _unlike(run: Run, same_input: RepeatIndex, same_votes: RepeatIndex) -> Iterator[int]:
    """The places of rows whose input occurred before with other votes: noise depends on the seed and the input alone.

    The indices number the occurrences of every input, and of every input with its votes. Where the two numbers
    differ, there is an earlier row with other votes.
    """
    names = ("length", "answer", "selection", "look_sizes", "look_alphas", "votes", "exact")
    for place, stored in enumerate(run.records(("input_hash", "truth", "problem", *names)), start=1):
        if stored["problem"] is None and stored["input_hash"]:
            votes = repr([with_current_labels(stored)[name] for name in names])
            same_input.add(key_of(stored["input_hash"]), place)
            same_votes.add(key_of(stored["input_hash"] + votes), place)
    numbered = same_votes.occurrences()
    place, number = next(numbered, (0, 1))
    for repeated, times in same_input.occurrences():
        while 0 < place < repeated:
            place, number = next(numbered, (0, 1))
        if times != (number if place == repeated else 1):
            yield repeated


def _whole(run: Run) -> list[str]:
    """Check the order of rows, the limit and the times."""
    wrong = []
    previous, missing, repeated = 0, None, False
    with RepeatIndex() as ids:
        for place, record in enumerate(run.records(("id", "row")), start=1):
            row = record["row"]
            if row is None or row < 1:
                return ["rows must be numbered from 1 on"]
            if record["id"] is not None:
                ids.add(key_of(record["id"]), place)
            repeated = repeated or row <= previous
            missing = place if missing is None and row != place else missing
            previous = row
        repeated = repeated or next(ids.occurrences(), None) is not None
    if repeated:
        wrong.append("rows are repeated, or out of order")
    elif run.finished and missing is not None:
        wrong.append(f"row {missing} is missing from a run that is finished according to its manifest")
    if run.finished and datetime.fromisoformat(run.manifest["finished"]) < datetime.fromisoformat(
        run.manifest.get("started", run.manifest["finished"])
    ):
        wrong.append("it was finished before it was started")
    limit = run.manifest.get("limit")
    if limit is not None and previous > limit:
        wrong.append(f"row {previous} is beyond the limit {limit}")
    seconds = (record["seconds"] for record in run.timed_records())
    if any(value is not None and (not isfinite(value) or value < 0) for value in seconds):
        wrong.append("times must be seconds of at least 0")
    return wrong


def _totals(run: Run, totals: Totals) -> list[str]:
    """Check that the manifest of a finished run states the totals of its rows, and nothing else."""
    if not run.finished:
        return []
    stated = run.manifest.get("totals")
    if stated is None:
        return ["the manifest lacks the totals"]
    expected = totals.to_dict()
    wrong = [f"the totals have a field {shown(name)!r}, which is unknown" for name in stated if name not in expected]
    wrong += [f"the totals lack {name}" for name in expected if name not in stated]
    different = [name for name in expected if name in stated and json.dumps(stated[name]) != json.dumps(expected[name])]
    counts = {"inputs", "problems"}
    if counts & set(different):
        wrong.append(
            f"the manifest counts {stated.get('inputs')} rows, {stated.get('problems')} of them with a problem; there "
            f"are {totals.inputs} and {totals.problems}"
        )
    return wrong + [
        f"the manifest states {name} = {stated[name]!r}; the rows give {expected[name]!r}"
        for name in different
        if name not in counts
    ]
