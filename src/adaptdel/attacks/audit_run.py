"""The audit of a certification run: its claims against the model and the data that the manifest names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from adaptdel.attacks.adaptive import vocabulary_of
from adaptdel.attacks.auditor import Auditor, AuditReport, Claim, ExactAuditor
from adaptdel.certification.sampling import content_key
from adaptdel.models.additive import AdditiveClassifier
from adaptdel.models.model_files import CONFIG
from adaptdel.progress import reporter
from adaptdel.runs.engine import ModelSource
from adaptdel.runs.inputs import LabelMap, RunInput, Source, inputs
from adaptdel.runs.records import certificate_of, label_text
from adaptdel.runs.storage import Run, read_run
from adaptdel.settings import AUDIT, CERTIFICATION, AttackSettings
from adaptdel.text.data import DrawnRows
from adaptdel.text.units import check_unit

_CLAIMED = ("input_hash", "answer", "radius", "p1", "p2")  # rows that agree in these make the same claim


def audit_run(
    folder: Path,
    *,
    model: Path | None = None,
    data: str | None = None,
    settings: AttackSettings = AUDIT,
    progress: Any = "auto",
) -> AuditReport:
    """Audit the certificates of a run, or a random sample of them.

    Args:
        folder: the run.
        model: the folder of the model; None for the one that the run names.
        data: the data file; None for the one that the run names.
        settings: ``inputs`` is the number of certificates that are drawn; ``seed`` that of the draw and of the votes.
        progress: True, False, "auto" (on a terminal) or a callable (done, total).
    """
    run = read_run(folder)
    manifest = run.manifest
    named = manifest.get("model") or {}
    place = Path(named.get("path", "")) if model is None else model
    if not (place / CONFIG).exists():
        raise ValueError(f"{place}: holds no model: name the model of the run with --model")
    if "method" in manifest:  # exact
        changes = {name: manifest[name] for name in ("ops", "threshold") if manifest[name] is not None}
    else:
        changes = {name: manifest[name] for name in ("ops", "bound", "threshold", "seed")}
        changes["alpha"] = manifest.get("alpha") or CERTIFICATION.alpha
    running = {"dtype": named["dtype"]} if named.get("dtype") else {}
    loaded = ModelSource(place, changes, running=running).load()
    _check_model(run, loaded, place)
    source = _source(run, data)
    claims = _claims(run, loaded, source, settings)
    auditor: Auditor | ExactAuditor
    if isinstance(loaded, AdditiveClassifier):
        auditor = ExactAuditor(loaded, settings)
    else:
        certifier = loaded.certifier()
        auditor = Auditor(certifier, vocabulary_of(certifier, source), settings)
    report, shown = AuditReport(), reporter(progress, "certificates")
    for claim in claims:
        report.add(auditor.check(claim))
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
