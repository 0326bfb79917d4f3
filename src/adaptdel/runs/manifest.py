"""The manifest of a run: the model, the plan, the data and the sessions; read and written as dataclasses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from math import inf
from typing import TYPE_CHECKING, Any

from adaptdel.certification.certificate import check_classes
from adaptdel.certification.evidence import Plan
from adaptdel.classifiers.base import stable_repr
from adaptdel.core.checks import check_format, check_int
from adaptdel.core.plain import from_plain, to_plain
from adaptdel.runs.engine import EngineSettings, versions
from adaptdel.runs.inputs import DataFacts, Source
from adaptdel.store import check_same_job
from adaptdel.text.units import check_unit, unit_from_dict

if TYPE_CHECKING:
    from adaptdel.models.estimator import TextEstimator

FORMAT = 4


@dataclass(frozen=True)
class Session:
    """A call that worked on a run.

    Attributes:
        started: when, in ISO 8601.
        engine: where inputs were certified.
        workers: the number of worker processes; None for as many as fit on a cluster.
        rows: of the data.
        done: rows that were done before.
        versions: of the libraries that results depend on.
    """

    started: str
    engine: str
    workers: int | None
    rows: int
    done: int
    versions: dict[str, str]

    def __post_init__(self) -> None:
        check_time("started", self.started)


@dataclass(frozen=True)
class ModelFacts:
    """The model of a run.

    Attributes:
        path: the folder, or that it was in memory.
        kind: the kind of model.
        base: the representation of the base classifier.
        method: how it was trained, if that is known.
        training: the record of the training, without its history.
        calibrated: whether its rates were calibrated.
        self_test: the record of the self-test of the base classifier.
        dtype: the precision of a transformer.
        protects: the class that a proved threshold protects.
    """

    path: str
    kind: str
    base: str
    method: str | None = None
    training: dict[str, Any] | None = None
    calibrated: bool = False
    self_test: dict[str, Any] | None = None
    dtype: str | None = None
    protects: str | None = None

    def __post_init__(self) -> None:
        for name in ("settings", "data"):
            if not isinstance(value := (self.training or {}).get(name) or {}, dict):
                raise ValueError(f"{name} must be an object, got {value!r:.60}")

    @classmethod
    def of(cls, path: str, model: TextEstimator) -> ModelFacts:
        """What is known of a model."""
        base, records = model.base_classifier(), model.records
        self_test = getattr(base, "self_test_", None)
        training = records.training or getattr(base, "training_", None) or {}
        return cls(
            path=path,
            kind=model.kind,
            base=stable_repr(base),
            method=training.get("method"),
            training={name: value for name, value in training.items() if name not in ("history", "losses")} or None,
            calibrated=records.calibration is not None,
            self_test=None if self_test is None else self_test.to_dict(),
            dtype=base.dtype,
            protects=protected_class(model),
        )


def protected_class(model: TextEstimator) -> str | None:
    """The class that the threshold of a model was proved to protect; None if it gives other answers by now."""
    protection = model.records.protection if model.changed_plan() is None else None
    return None if protection is None else str(protection["label"])


@dataclass(frozen=True)
class Manifest:
    """What a run is: its plan, model and data; and once it is finished, what its table holds.

    Attributes:
        model_hash: the fingerprint of the base classifier.
        unit: what a token is.
        classes: the labels, in the order of the class numbers.
        plan: what evidence and radii depend on besides inputs and classifier.
        limit: the number of rows to certify, from the first; None for all.
        model: what is known of the model.
        data: what is known of the data.
        started: when the run was started.
        source: the folder of the run whose evidence this run derives its radii from; None for a run of a model.
        sessions: the calls that worked on it.
        finished: when it was finished; None if it is not.
        rows: of the table.
        seconds: of the work on all rows.
        table_sha256: the hash of the table.
        totals: measures over all rows.
    """

    model_hash: str
    unit: dict[str, Any] | None
    classes: list[Any]
    plan: Plan
    limit: int | None
    model: ModelFacts
    data: DataFacts
    started: str
    source: str | None = None
    sessions: list[Session] = field(default_factory=list)
    finished: str | None = None
    rows: int | None = None
    seconds: float | None = None
    table_sha256: str | None = None
    totals: dict[str, Any] | None = None
    format: int = FORMAT

    def __post_init__(self) -> None:
        if len(check_classes(self.classes)) < 2:
            raise ValueError("classes must hold at least 2 labels, got 1")
        if any(isinstance(label, (list, dict)) for label in self.classes):
            raise ValueError("classes must hold texts or numbers")
        if self.unit is not None:
            unit_from_dict(self.unit)
        if self.plan.decision_threshold is not None and len(self.classes) != 2:
            raise ValueError("threshold must be null unless there are two classes")
        if self.limit is not None:
            check_int("limit", self.limit, least=1)
        if self.finished is not None:
            self._check_finished()

    def _check_finished(self) -> None:
        """A finished run states what is in its table; its last session has counted as many rows."""
        check_time("finished", self.finished)
        missing = [name for name in ("totals", "rows", "table_sha256") if getattr(self, name) is None]
        if missing or not self.sessions:
            raise ValueError(f"a finished run must state {', '.join(missing) or 'its sessions'}")
        if self.sessions[-1].rows != self.rows:
            raise ValueError(f"it counts {self.rows} rows, and its last session {self.sessions[-1].rows}")

    @property
    def kind(self) -> str:
        """The kind of evidence in the table."""
        return self.plan.kind

    @property
    def protects(self) -> str | None:
        """The class that the decision threshold protects, as text; None without a threshold."""
        if self.plan.protected is None or len(self.classes) != 2:
            return None
        return self.model.protects or str(self.classes[self.plan.protected])

    @classmethod
    def from_dict(cls, values: Any) -> Manifest:
        """The manifest of a file, checked; ValueError names a field that is wrong."""
        check_format(values.get("format") if isinstance(values, Mapping) else None, FORMAT)
        return from_plain(cls, values)

    def job(self) -> dict[str, Any]:
        """What a run can only be resumed with: what its rows depend on, beside the data."""
        return {
            "the precision (dtype)": self.model.dtype,
            **{name: to_plain(getattr(self, name)) for name in ("model_hash", "unit", "classes")},
            **self.plan.to_dict(),
            "threat": str(self.plan.threat),
            **{f"the {name} column": getattr(self.data, name) for name in ("text", "label")},
            **{f"the {name}": to_plain(getattr(self.data, name)) for name in ("encoding", "sample")},
        }

    def check_resumable(self, folder: Any, now: Manifest) -> None:
        """Raise ValueError with the differences unless the run can be continued; its data are compared row by row."""
        if not now.model_hash:
            raise ValueError(
                f"{folder}: cannot be resumed: the base classifier has no fingerprint, so that it may be another "
                "one: choose another folder for --out"
            )
        if (now.limit or inf) < (self.limit or inf):
            raise ValueError(f"{folder}: the limit was {self.limit}, now {now.limit}, and can only be raised")
        check_same_job(folder, self.job(), now.job(), "choose another folder for --out")

    def unfinished(self, **changes: Any) -> Manifest:
        """The manifest of the same run while it goes on."""
        changes |= dict.fromkeys(("finished", "totals", "rows", "table_sha256"))
        return replace(self, **changes)


def new_manifest(path: str, model: TextEstimator, source: Source, limit: int | None) -> Manifest:
    """The manifest of a new run."""
    base = model.base_classifier()
    return Manifest(
        model_hash=base.fingerprint(),
        unit=check_unit(model.unit).to_dict(),
        classes=list(base.classes_ or []),
        plan=model.plan,
        limit=limit,
        model=ModelFacts.of(path, model),
        data=source.facts(hashed=False),
        started=timestamp(),
    )


def session(engine: EngineSettings, rows: int, done: int = 0) -> Session:
    """The session that starts now."""
    workers = 1 if engine.engine == "local" and engine.workers is None else engine.workers
    return Session(timestamp(), engine.engine, workers, rows, done, versions())


def timestamp() -> str:
    """The current time in ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def check_time(name: str, value: Any) -> None:
    """Raise ValueError unless it is a time with its zone."""
    try:
        zone = datetime.fromisoformat(value).tzinfo
    except (ValueError, TypeError):
        zone = None
    if zone is None:
        raise ValueError(f"{name} must be a time such as 2026-01-31T12:00:00+00:00, got {value!r:.60}")
