"""New radii from the votes of a run, without the model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from adaptdel.bounds import BOUNDS
from adaptdel.budget import STEPS, TooMuchWork, limited
from adaptdel.checks import check_alpha, check_choice
from adaptdel.evaluation.manifest import versions
from adaptdel.evaluation.runs import MANIFEST, RESTORE, Run, read_run, timestamp, write_tables
from adaptdel.evaluation.schema import Record, certificate_of, record_of, truth_of
from adaptdel.evaluation.signature import SigningKey, sign_run
from adaptdel.evaluation.totals import Totals
from adaptdel.files import replacing_folder, write_json
from adaptdel.noise import Masking, noise_from_dict
from adaptdel.radius import check_noise
from adaptdel.threat import Threat


def recertify(
    source: Path,
    out: Path,
    *,
    alpha: float | None = None,
    ops: str | None = None,
    bound: str | None = None,
    work: int | None = STEPS,
    key: SigningKey | None = None,
) -> dict[str, Any]:
    """Write a run with new radii beside the one that has the votes; its manifest, which says where it came from.

    ``work`` is how many steps of arithmetic may be spent on a row; ``key`` signs the new run.
    """
    run = read_run(source)
    if "alpha" not in run.manifest:
        raise ValueError(f"{source / MANIFEST}: must state alpha to be recertified")
    if not run.finished:
        raise ValueError(f"{source}: the run is not finished: run its certify again first")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out}: must be a new folder, or an empty one")
    changes = _checked(run, alpha, ops, bound)
    manifest = run.manifest | changes
    manifest["source"] = {
        "path": str(source),
        **{name: run.manifest[name] for name in ("alpha", "ops", "bound")},
        "planned": _planned(run.manifest),
    }
    manifest["started"] = timestamp()
    totals = Totals()

    def records() -> Iterator[Record]:
        for record in _rederived(run, changes, work):
            totals.add(record)
            yield record

    with replacing_folder(out) as partial:
        write_tables(partial, records())
        manifest |= {"finished": timestamp(), "sessions": [{"started": manifest["started"], "versions": versions()}]}
        manifest["totals"] = totals.to_dict()
        write_json(partial / MANIFEST, manifest)
        if key is not None:
            sign_run(partial, key)
    return manifest


def _planned(manifest: dict[str, Any]) -> dict[str, Any] | None:
    """For which alpha and attacker the looks of a run were planned; None if it does not say."""
    if manifest.get("source") is None:
        return {name: manifest[name] for name in ("alpha", "ops")}
    planned: dict[str, Any] | None = manifest["source"].get("planned")
    return planned


def _checked(run: Run, alpha: float | None, ops: str | None, bound: str | None) -> dict[str, Any]:
    """What is to be changed, in the manifest's words."""
    changes: dict[str, Any] = {}
    if alpha is not None:
        changes["alpha"] = check_alpha(alpha)
    if ops is not None:
        noise = noise_from_dict(run.manifest["noise"])
        threat = Threat("sub" if ops == "edit" and isinstance(noise, Masking) else ops)
        check_noise(noise, threat)
        changes["ops"] = list(threat.ops)
    if bound is not None:
        changes["bound"] = check_choice("bound", bound, BOUNDS)
    return changes


def _rederived(run: Run, changes: dict[str, Any], work: int | None) -> Iterator[Record]:
    seconds = run.times["seconds"].to_pylist() or [None] * len(run.table)
    for record, time in zip(run.records(), seconds, strict=True):
        if record["problem"] is not None:
            yield record | {"seconds": time}
            continue
        try:
            certificate = certificate_of(run.manifest, record).rederive(**changes)
            with limited(work):
                derived = record_of(certificate, id=record["id"], row=record["row"], truth=truth_of(record))
        except TooMuchWork:
            raise ValueError(
                f"{run.place(record)}: to derive the radius for {record['length']} tokens takes more than the {work} "
                "steps that are allowed: allow more with --work"
            ) from None
        except ValueError as error:
            raise ValueError(f"{run.place(record)}: {error}: {RESTORE}") from None
        yield derived | {"seconds": time}
