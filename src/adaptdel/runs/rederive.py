"""Verify a run: recompute every certificate in ball arithmetic or in integers, and compare everything else with it.

Whatever can be derived is derived again: columns from the votes, looks and their number from the plan that the manifest
states, totals from the rows. What cannot be derived is that the votes are those of the model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from hashlib import blake2b
from itertools import zip_longest
from math import isclose, sqrt
from pathlib import Path
from typing import Any

import numpy as np

from adaptdel.certification.certificate import Certificate, Rule, digest
from adaptdel.certification.certifier import Input
from adaptdel.certification.sampling import (
    AT_ONCE,
    LEAD,
    SamplingPlan,
    copies_instead,
    plan_looks,
    radius_is_final,
)
from adaptdel.certification.verify import ROUNDING, is_same, too_much, verify
from adaptdel.core.bounds import check_bound
from adaptdel.core.checks import STEPS, TooMuchWork, check_alpha, limited
from adaptdel.core.confidence import Looks
from adaptdel.core.noise import noise_from_dict
from adaptdel.core.radius import check_noise
from adaptdel.core.threat import Threat
from adaptdel.files import replacing_folder, write_json
from adaptdel.runs.engine import ENGINE, with_settings
from adaptdel.runs.inputs import LabelMap, RunInput, Source, inputs
from adaptdel.runs.manifest import protected_class, session, timestamp
from adaptdel.runs.records import (
    CERTIFICATES,
    RESTORE,
    Record,
    Totals,
    certificate_of,
    label_of,
    label_text,
    record_of,
    values_of,
)
from adaptdel.runs.storage import MANIFEST, Run, read_run, write_table
from adaptdel.text.data import DrawnRows


def verify_run(
    run: Run, *, work: int | None = STEPS, note: Callable[[str], None] = lambda text: None
) -> Iterator[tuple[str, list[str]]]:
    """Yield the errors of every row that has a certificate, with the name of the row; then those of the whole run.

    ``work`` is that of `adaptdel.certification.verify.verify`; ``note`` is called with remarks that are no errors.
    """
    if not run.finished:
        note("the run is not finished: only the finished inputs are checked")
    plan = StatedModel(run.manifest) if "method" in run.manifest else StatedPlan(run.manifest)
    totals = Totals.of(run.manifest)
    whole: list[str] = []
    stated = (run.manifest["data"] or {}).get("sample")
    previous, drawn, failed = 0, list[int](), False
    for record in run.records():
        row, place = record["row"], f"row {record['row']}"
        if row <= previous or (run.finished and stated is None and row != previous + 1):
            whole = whole or [f"row {row} follows row {previous}: rows are missing, repeated or out of order"]
        if record["id"] is not None and not record["id"].startswith(f"{row}-"):
            whole = whole or [f"row {row} has the id of another row, {record['id']!r:.60}"]
        previous = row
        if stated is not None:
            drawn.append(row)
        if record["problem"] is None:
            wrong = plan.errors(record, work)
            yield place, wrong
        else:
            others = [name for name in CERTIFICATES.names if name not in ("id", "row", "problem")]
            wrong = [f"a row with a problem must have no {name}" for name in others if record[name] is not None]
            if wrong:
                yield place, wrong
        if wrong:
            failed, totals.inputs = True, totals.inputs + 1
        else:
            totals.add(record)
    limit = run.manifest["limit"]
    if limit is not None and previous > limit:
        whole.append(f"row {previous} is beyond the limit {limit}")
    if run.finished:
        whole += _totals(run.manifest, totals, compare=not failed)
        if stated is not None and drawn != [place + 1 for place in DrawnRows(**stated).places(range(previous))]:
            whole.append("its rows are not those that the seed of its sample draws")
    if whole:
        yield "the run", whole


def _totals(manifest: Mapping[str, Any], totals: Totals, *, compare: bool) -> list[str]:
    """Check that a finished run states the number of its rows and, to compare if all rows hold, every total."""
    if manifest["rows"] != totals.inputs:
        return [f"the manifest counts {manifest['rows']} rows, there are {totals.inputs}"]
    if not compare:
        return []
    stated, derived = manifest["totals"], json.loads(json.dumps(totals.to_dict()))
    names = [name for name in {**derived, **stated} if stated.get(name, ...) != derived.get(name, ...)]
    return [
        f"the totals state {name:.60} = {stated.get(name, 'nothing')!r:.60}, the rows give "
        f"{derived.get(name, 'nothing')!r:.60}"
        for name in names
    ]


class StatedModel:
    """What rows of exact certificates share: offsets, what a token can do, and the scores of the same input."""

    def __init__(self, manifest: Mapping[str, Any]) -> None:
        self.manifest = manifest
        self._known: dict[Any, Any] = {}

    def errors(self, record: Record, work: int | None = STEPS) -> list[str]:
        """List what is wrong with a row: a column that does not follow from its integers, or another model."""
        try:
            certificate, wrong = _derived(self.manifest, record)
        except (ValueError, RecursionError) as error:
            return [f"not a certificate: {error}"]
        wrong += _wrong_label(self.manifest, record)
        if digest(values_of(certificate, record)) != record["digest"]:
            wrong.append("the digest does not fit")
        shared = [("offsets", None, record["offsets"]), ("reach", record["answer"], record["reach"])]
        shared.append(("scores", record["input_hash"], digest({"scores": record["scores"]})))
        for name, key, value in shared:
            if self._known.setdefault((name, key), value) != value:
                wrong.append(f"another row has other {name}, so they are not of the same model")
        return wrong


def _wrong_label(manifest: Mapping[str, Any], record: Record) -> list[str]:
    if record["truth"] is None or record["truth"] in map(label_text, manifest["classes"]):
        return []
    return [f"the label {record['truth']!r:.60} in the column truth is not one of the classes"]


def verify_with_model(
    run: Run, model: Any, source: Source, *, note: Callable[[str], None] = lambda text: None
) -> Iterator[tuple[str, list[str]]]:
    """Yield the differences of every row of an exact run from the certificate of the model for the text in the data.

    Threshold and operations are those of the run; ``note`` is called with what the model has in their place.
    """
    manifest = run.manifest
    if "method" not in manifest:
        raise ValueError(
            f"{run.folder}: its certificates come from votes: certify again instead, and compare the tables"
        )
    settings = {"ops": tuple(manifest["ops"]), "threshold": manifest["threshold"] or 0}
    own = {"ops": Threat(model.ops).ops, "threshold": model.threshold}
    for name in [name for name in settings if own[name] != settings[name]]:
        note(f"the certificates are for {name} = {settings[name]!r}, the model has {own[name]!r}")
    model = with_settings(model, settings)
    if model.base_classifier().fingerprint() != manifest["model_hash"]:
        raise ValueError(f"{run.folder}: belongs to another model")
    stated, derived = (manifest["model"] or {}).get("protects"), protected_class(model)
    if stated not in (None, derived):
        yield "the run", [f"it states that it protects {stated!r:.60}, the model at this threshold: {derived!r}"]
    rows = inputs(source, LabelMap(manifest["classes"]), manifest["limit"])
    data = (Input(row.text, f"row {row.row}", row) for row in rows if isinstance(row, RunInput))
    records = (record for record in run.records() if record["problem"] is None)
    for record, result in zip_longest(records, model.certifier()(data)):
        if record is None or result is None or record["row"] != result.input.tag.row:
            yield "the run", ["its rows are not those of the data"]
            return
        given = result.input.tag
        expected = record_of(result.certificate, id=given.id, row=given.row, label=given.label)
        wrong = [f"{name} is not that of the model" for name in expected if record[name] != expected[name]]
        is_other = record["input_hash"] != expected["input_hash"]
        yield f"row {given.row}", ["its text is not that of the data"] if is_other else wrong


class StatedPlan:
    """The sampling plan that a manifest states: that of the original run if it was recertified."""

    def __init__(self, manifest: Mapping[str, Any]) -> None:
        self.manifest, self.alpha = manifest, float(manifest["alpha"])
        self._votes: dict[str, bytes] = {}  # of each input: noise depends on the seed and the input alone
        self.noise = noise_from_dict(manifest["noise"])
        self.n_select, self.n_estimate = manifest["votes"]
        self.adaptive = manifest["sampling"] == "adaptive"
        self.labels = [label_text(label) for label in manifest["classes"]]
        planned = manifest["source"]["planned"] if "source" in manifest else manifest
        self.plan = SamplingPlan(
            Rule(self.noise, Threat(planned["ops"]).ops, planned["bound"], manifest["threshold"]),
            alpha=float(planned["alpha"]),
            n_select=self.n_select,
            n_estimate=self.n_estimate,
            sampling=manifest["sampling"],
            seed=manifest["seed"],
            exact=self.adaptive,
        )

    def errors(self, record: Record, work: int | None = STEPS) -> list[str]:
        """List what is wrong with a row: its certificate, its votes, or a column that does not follow from them."""
        names = ("length", "answer", "selection", "look_sizes", "look_alphas", "votes", "exact")
        key = blake2b(repr([record[name] for name in names]).encode(), digest_size=16).digest()
        wrong = self._row_errors(record, work)
        if self._votes.setdefault(record["input_hash"], key) != key:
            wrong.append("another row of the same input has other votes")
        return wrong

    def _row_errors(self, record: Record, work: int | None) -> list[str]:
        try:
            with limited(work):
                certificate, wrong = _derived(self.manifest, record)
        except TooMuchWork:
            return [too_much(record["length"], work)]
        except (ValueError, RecursionError) as error:
            return [f"not a certificate: {error}"]
        wrong += verify(values_of(certificate, record), work=work)
        wrong += _wrong_label(self.manifest, record)
        if certificate.alpha > self.alpha * (1 + ROUNDING):
            wrong.append(f"its alpha is {certificate.alpha:g}, above that of the run, {self.alpha:g}")
        try:
            with limited(work):
                return wrong + self._wrong(certificate)
        except TooMuchWork:
            return [too_much(certificate.length, work)]
        except ValueError as error:
            return [*wrong, str(error)]

    def _wrong(self, certificate: Certificate) -> list[str]:
        """List the differences between a certificate's votes and looks and the plan."""
        copies = certificate.noise.choices(certificate.length)
        if certificate.exact is not None:
            return [] if self.adaptive else ["inputs are not enumerated under fixed sampling"]
        assert certificate.looks is not None
        most = max(
            min(AT_ONCE, self.n_select + self.n_estimate),
            *(copies_instead(certificate.looks, taken) for taken in range(len(certificate.votes))),
        )
        if self.adaptive and copies <= most:
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
        """Check that the looks are the planned ones, at the run's alpha, and that sampling ended as planned."""
        most = self.n_estimate + self.n_select - sum(certificate.selection)
        rule = replace(self.plan.rule, noise=certificate.noise)
        expected = plan_looks(replace(self.plan, rule=rule), certificate.length, len(self.labels), most)
        if looks.sizes != expected.sizes:
            return [f"looks were planned after {_few(expected.sizes)} votes, not after {_few(looks.sizes)}"]
        scale = self.alpha / sum(expected.alphas)
        levels = zip(looks.alphas, expected.alphas, strict=True)
        if not all(isclose(level, share * scale, rel_tol=ROUNDING) for level, share in levels):
            return [f"the levels of the looks are not those that were planned for alpha {self.alpha:g}"]
        votes = [np.asarray(row, dtype=np.int64) for row in certificate.votes]
        for taken in range(1, len(expected.sizes)):
            final = radius_is_final(
                votes[:taken], certificate.answer, expected, rule, certificate.length, len(self.labels)
            )
            if final and taken < len(votes):
                return [f"sampling went on after look {taken}, at which the plan ends it"]
            if taken == len(votes):
                return [] if final else [f"sampling ended after look {taken}, at which the plan goes on"]
        return []


def _few(sizes: tuple[int, ...]) -> str:
    return ", ".join(map(str, sizes[:8])) + (", ..." if len(sizes) > 8 else "")


def _derived(manifest: Mapping[str, Any], record: Record) -> tuple[Any, list[str]]:
    """The certificate that follows from the votes of a row, and the columns of the row that differ from it."""
    certificate = certificate_of(manifest, record)
    expected = record_of(certificate, id=record["id"], row=record["row"], label=label_of(record))
    names = [name for name in CERTIFICATES.names if name != "digest" and not is_same(record[name], expected[name])]
    wrong = [f"{name} is {record[name]!r:.60}, not {expected[name]!r:.60}" for name in names]
    return certificate, wrong + ([] if record["input_hash"] else ["input_hash must not be empty"])


def recertify(
    source: Path,
    out: Path,
    *,
    alpha: float | None = None,
    ops: str | None = None,
    bound: str | None = None,
    work: int | None = STEPS,
) -> dict[str, Any]:
    """Write a new run with radii derived from the votes of a run, and return its manifest, which names the source.

    The files and rows of the source are checked first: a row whose digest or radius does not follow from its votes is
    refused. ``work`` limits the number of arithmetic steps per row.
    """
    run = read_run(source)
    if not run.finished:
        raise ValueError(f"{source}: the run is not finished: run its certify again first")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out}: must be a new folder, or an empty one")
    changes = _checked(run, alpha, ops, bound)
    setting = {name: run.manifest[name] for name in ("alpha", "ops", "bound")}
    planned = run.manifest["source"]["planned"] if "source" in run.manifest else setting
    described = {"path": str(source), **setting, "planned": planned}
    manifest = run.manifest | changes | {"source": described, "started": timestamp()}
    totals = Totals.of(manifest)

    def records() -> Iterator[Record]:
        for record in run.records():
            derived = record if record["problem"] is not None else _rederived(run, record, changes, work)
            totals.add(derived)
            yield derived

    with replacing_folder(out) as partial:
        manifest["table_sha256"] = write_table(partial, records())
        if totals.inputs != run.manifest["rows"]:
            raise ValueError(
                f"{run.file}: has {totals.inputs} rows, the manifest counts {run.manifest['rows']}: {RESTORE}"
            )
        manifest |= {"totals": totals.to_dict(), "sessions": [session(ENGINE, totals.inputs)]}
        manifest["finished"] = timestamp()
        write_json(partial / MANIFEST, manifest)
    return manifest


def _checked(run: Run, alpha: float | None, ops: str | None, bound: str | None) -> dict[str, Any]:
    """The changed settings, checked, as fields of a manifest."""
    changes: dict[str, Any] = {}
    if "method" in run.manifest:
        if alpha is not None or bound is not None:
            raise ValueError(
                f"{run.folder}: holds exact certificates, which have neither alpha nor bound: leave them out"
            )
        return {} if ops is None else {"ops": list(Threat(ops).ops)}
    if alpha is not None:
        changes["alpha"] = check_alpha(alpha)
    if ops is not None:
        noise = noise_from_dict(run.manifest["noise"])
        threat = Threat(noise.certified_ops if ops == "edit" else ops)
        check_noise(noise, threat)
        changes["ops"] = list(threat.ops)
    if bound is not None:
        changes["bound"] = check_bound(bound)
    return changes


def _rederived(run: Run, record: Record, changes: Mapping[str, Any], work: int | None) -> Record:
    """A row with new settings, after it was checked."""
    place = f"{run.file}, row {record['row']}"
    try:
        with limited(work):
            certificate, wrong = _derived(run.manifest, record)
            if digest(values_of(certificate, record)) != record["digest"]:
                wrong.append("the digest does not fit")
            if wrong:
                raise ValueError(f"does not hold ({'; '.join(wrong)})")
            changed = certificate.rederive(**changes)
            return record_of(changed, id=record["id"], row=record["row"], label=label_of(record))
    except TooMuchWork:
        raise ValueError(
            f"{place}: deriving the radius for {record['length']} tokens takes more than {work} steps: "
            "raise the limit with --work"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{place}: {error}: {RESTORE}") from None
