"""The audit of a certification run: its claims against the model and the data that the manifest names."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from adaptdel.attacks.auditor import Auditor, AuditReport, Claim, ClaimAudit, ExactAuditor
from adaptdel.attacks.vocabulary import Vocabulary, vocabulary_of
from adaptdel.certification.sampling import content_key
from adaptdel.core.checks import check_int
from adaptdel.models.additive import AdditiveClassifier
from adaptdel.progress import reporter
from adaptdel.runs.engine import LocalEngine, ModelSource, Task, Work
from adaptdel.runs.inputs import LabelMap, RunInput, Source, inputs
from adaptdel.runs.records import certificate_of, label_text
from adaptdel.runs.storage import Run, read_run
from adaptdel.settings import AUDIT, AttackSettings
from adaptdel.text.data import DrawnRows
from adaptdel.text.units import check_unit

_CLAIMED = ("input_hash", "answer", "radius", "p1", "p2")  # rows that agree in these make the same claim


@dataclass(frozen=True)
class AuditTask(Task):
    """Audit claims; results are their audits.

    Attributes:
        vocabulary: the words that are written; None for an additive model, which knows the worst ones.
        settings: limits of the attack.
    """

    kept: ClassVar[str] = "an audit keeps no results"
    chunk: ClassVar[int] = 1  # a claim takes seconds

    vocabulary: Vocabulary | None
    settings: AttackSettings

    def load(self) -> Work:
        """A function from claims to audits."""
        assert self.source is not None
        model = self.source.load()
        if self.vocabulary is None:
            check = ExactAuditor(model, self.settings).check
        else:
            check = Auditor(model.certifier(), self.vocabulary, self.settings).check
        return partial(map, check)

    def failed(self, item: Any, reason: str) -> ClaimAudit:
        """An audit needs every certificate that was drawn."""
        raise ValueError(f"{item.name}: {reason}: {self.try_again} with fewer workers")


@dataclass(frozen=True)
class AuditJob:
    """A run to audit.

    Attributes:
        run: the folder of the run.
        model: the folder of the model; None for the one that the run names.
        data: the data file; None for the one that the run names.
        vocabulary: texts whose words are written; None for those of the data.
        settings: ``inputs`` is the number of certificates that are drawn; ``seed`` that of the draw and of the votes.
        workers: the number of processes.
    """

    run: Path
    model: Path | None = None
    data: str | None = None
    vocabulary: str | None = None
    settings: AttackSettings = AUDIT
    workers: int = 1

    def __post_init__(self) -> None:
        check_int("workers", self.workers, least=1)


def audit_run(job: AuditJob, *, progress: Any = "auto") -> AuditReport:
    """Audit the certificates of a run, or a random sample of them."""
    run = read_run(job.run)
    manifest = run.manifest
    named = manifest.get("model") or {}
    folder = Path(named.get("path", "")) if job.model is None else job.model
    if not (folder / "adaptdel.json").exists():
        raise ValueError(f"{folder}: holds no model: name the model of the run with --model")
    if "method" in manifest:
        settings = {name: manifest[name] for name in ("ops", "threshold") if manifest[name] is not None}
    else:
        settings = {name: manifest[name] for name in ("ops", "bound", "threshold", "seed")}
        settings["alpha"] = manifest.get("alpha") or 0.05
    running = {"dtype": named["dtype"]} if named.get("dtype") else {}
    source = ModelSource(folder, settings, running=running)
    model = source.load()
    _check_model(run, model, folder)
    data = _source(run, job.data)
    claims = _claims(run, model, data, job.settings)
    vocabulary = None
    if not isinstance(model, AdditiveClassifier):
        words = data if job.vocabulary is None else replace(data, path=job.vocabulary, sample=None)
        vocabulary = vocabulary_of(model.certifier(), words)
    elif job.vocabulary is not None:
        raise ValueError(
            "vocabulary has no meaning for an additive model, whose weights name the worst words: leave it out"
        )
    report = AuditReport()
    shown = reporter(progress, "certificates")
    with LocalEngine(job.workers) as engine:
        for audit in engine.map(AuditTask(source, vocabulary, job.settings), claims, len(claims)):
            report.add(audit)
            if shown is not None:
                shown(report.certificates, len(claims))
    return report


def _check_model(run: Run, model: Any, folder: Path) -> None:
    """Raise unless the model is the one that the run certified."""
    base = model.base_classifier()
    own = {
        "fingerprint": base.fingerprint(),
        "noise": model.run_settings()["noise"],
        "unit": check_unit(model.unit).to_dict(),
    }
    for name, value in own.items():
        if value != run.manifest["model_hash" if name == "fingerprint" else name]:
            raise ValueError(f"{folder}: not the model of the run {run.folder}: its {name} differs")


def _source(run: Run, given: str | None) -> Source:
    stated = run.manifest.get("data") or {}
    path = given or stated.get("path")
    if not path or path == "in memory":
        raise ValueError(f"{run.folder}: the run does not name its data file: give it with --data")
    columns = {name: stated[name] for name in ("text", "label", "encoding") if name in stated}
    drawn = DrawnRows(**stated["sample"]) if "sample" in stated else None
    return Source(tuple(path) if isinstance(path, list) else path, **columns, sample=drawn)


def _claims(run: Run, model: Any, data: Source, settings: AttackSettings) -> list[Claim]:
    """The claims of a random sample of the certificates, each with the tokens of its text.

    Rows of the same text have the same votes, and are wrong together. They count as one certificate, because the test
    of the audit takes certificates to be wrong independently of each other.
    """
    distinct: dict[tuple[Any, ...], int] = {}
    for record in run.records(("row", "problem", *_CLAIMED)):
        if record["problem"] is None:
            distinct.setdefault(tuple(record[name] for name in _CLAIMED), record["row"])
    rows = list(distinct.values())
    order = np.random.Generator(np.random.Philox(settings.seed)).permutation(len(rows))[: settings.inputs]
    chosen = {rows[place] for place in order.tolist()}
    if not chosen:
        raise ValueError(f"{run.folder}: holds no certificate to audit")
    records = {record["row"]: record for record in run.records() if record["row"] in chosen}
    classes = [label_text(label) for label in run.manifest["classes"]]
    unit, claims = check_unit(model.unit), []
    for run_input in inputs(data, LabelMap(run.manifest["classes"]), max(chosen)):
        if not isinstance(run_input, RunInput) or run_input.row not in chosen:
            continue
        record = records[run_input.row]
        tokens = unit.split(run_input.text)
        if content_key(tokens).hex() != record["input_hash"]:
            raise ValueError(
                f"{data.name}, row {run_input.row}: not the text that the run {run.folder} certified: give its "
                "data file with --data"
            )
        # The stated radius and bounds are audited, not those that follow from the votes: `adaptdel verify` compares.
        name, label = f"row {run_input.row}", classes.index(record["answer"])
        if "method" in run.manifest:
            claims.append(Claim(name, tokens, label, record["radius"]))
        else:
            stated = {each: record[each] for each in ("radius", "p1", "p2")}
            certificate: Any = certificate_of(run.manifest, record)
            claims.append(Claim.of(name, tokens, certificate, label=label, **stated))
    if len(claims) < len(chosen):
        raise ValueError(f"{data.name}: lacks {len(chosen) - len(claims)} of the rows that {run.folder} certified")
    return claims
