"""The bodies of requests and responses; the OpenAPI document is made from them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from adaptdel import __version__
from adaptdel.certification.certificate import Certificate
from adaptdel.core.noise import Deletion
from adaptdel.core.rates import FixedRate

TEXT = "The film was slow at first, but the last hour is among the best I have seen this year."
STREAM_EVENT = {  # each event of a stream
    "type": "object",
    "properties": {
        "event": {"enum": ["votes", "look", "result", "failed", "done"]},
        "data": {"type": "string", "description": "JSON."},
    },
    "required": ["event", "data"],
}
Operation = Literal["del", "ins", "sub"]
Count = Annotated[int, Field(ge=1)]


class Body(BaseModel):
    """A body whose fields are all known and have their types."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _few_fields(cls, values: Any) -> Any:
        """Refuse a body of thousands of unknown fields by its first one: an error for each would take seconds."""
        if isinstance(values, dict) and len(values) > len(cls.model_fields):
            unknown = next(name for name in values if name not in cls.model_fields)
            raise ValueError(f"{unknown!r:.60} is not a field: the fields are {', '.join(cls.model_fields)}")
        return values


class Votes(Body):
    """Numbers of votes; those that are left out are the model's."""

    select: Count | None = Field(None, description="Largest number of votes that select the answer.")
    estimate: Count | None = Field(None, description="Largest number of votes that bound its probability.")


class TextsBody(Body):
    """One text or several."""

    text: str | None = Field(None, description="A text; give this or `texts`.")
    texts: Annotated[list[str], Field(min_length=1, fail_fast=True)] | None = Field(
        None, description="Several texts; give this or `text`."
    )
    model: str | None = Field(None, description="The name of a model; the first one if it is left out.")
    deadline_ms: Count | None = Field(None, description="Time in milliseconds after which votes stop.")

    @model_validator(mode="after")
    def _text_or_texts(self) -> TextsBody:
        if (self.text is None) == (self.texts is None):
            raise ValueError("give either text or texts")
        return self

    def all_texts(self) -> list[str]:
        """The texts, also if it is a single one."""
        return [self.text] if self.text is not None else list(self.texts or [])


class PredictBody(TextsBody):
    """A request for predictions."""

    votes: Votes | None = Field(None, description="`estimate` has no effect here and must be left out.")

    @model_validator(mode="after")
    def _no_estimation(self) -> PredictBody:
        if self.votes is not None and self.votes.estimate is not None:
            raise ValueError("votes.estimate has no meaning for a prediction: leave it out")
        return self


class CertifyBody(TextsBody):
    """A request for certificates."""

    alpha: float | None = Field(None, gt=0, lt=1, description="Largest probability that a certificate is wrong.")
    ops: Literal["edit"] | Annotated[list[Operation], Field(fail_fast=True)] | None = Field(
        None, description="Operations of the attacker."
    )
    votes: Votes | None = Field(None, description="The budget of votes.")
    influence: bool = Field(False, description="Also return for every token the votes with it and without it.")
    stream: bool = Field(False, description="Answer with server-sent events as votes come.")


class VerifyBody(Body):
    """A certificate to verify."""

    certificate: dict[str, Any] = Field(description="As `POST /v1/certify` or `Certificate.to_dict` returned it.")


class Result(BaseModel):
    """What a response holds; further fields may be added in later versions."""

    model_config = ConfigDict(protected_namespaces=())


class TokenInfluence(Result):
    """Votes with a token kept and deleted. Of an enumerated text, copies count with their probability."""

    model_config = ConfigDict(populate_by_name=True)

    kept: float = Field(description="Votes on copies that keep the token.")
    for_: float = Field(alias="for", description="Of those, the votes for the label.")
    deleted: float = Field(description="Votes on copies without the token.")
    for_when_deleted: float = Field(description="Of those, the votes for the label.")


class CertifyResult(Result):
    """The answer to a text and what is proven about it; or only `error`, if a text of a batch failed."""

    label: Any = Field(description="The answer; null if a deadline came before the first vote.")
    radius: int = Field(description="So many edits cannot change the answer; -1 if nothing is certified.")
    abstained: bool
    score: float = Field(description="The share of votes for the label.")
    length: int | None = Field(description="The number of tokens.")
    alpha: float
    ops: list[Operation]
    radii: dict[str, int] = Field(description="The radius for each operation alone, and for all (`edit`).")
    covers_every_text: bool
    deadline_reached: bool
    calls: int = Field(description="The number of votes.")
    seconds: float
    certificate: dict[str, Any] | None = Field(description="The votes and their plan, for `adaptdel verify`.")
    tokens: list[Any] | None = None
    influence: list[TokenInfluence] | None = None


class TextError(Result):
    """Why a text of a batch has no result."""

    error: str


class CertifyResponse(Result):
    """Results in the order of the texts."""

    model: str
    results: list[CertifyResult | TextError]


class PredictResult(Result):
    """The answer to a text, without a certificate."""

    label: Any = Field(description="The answer; null if a deadline came before the first vote.")
    scores: dict[str, float] = Field(description="The share of votes for every class.")
    deadline_reached: bool
    calls: int
    seconds: float


class PredictResponse(Result):
    """Results in the order of the texts."""

    model: str
    results: list[PredictResult | TextError]


class VerifyResponse(Result):
    """Whether the radius of a certificate follows from its votes."""

    valid: bool
    radius: int = Field(description="The radius that is certified; -1 if the certificate is not valid.")
    reasons: list[str] = Field(description="Why it is not valid, a sentence each.")


class Example(Result):
    """A text to try."""

    title: str
    text: str
    label: Any = None


class ModelInfo(Result):
    """A model that is served."""

    name: str
    default: bool
    kind: str
    classes: list[Any]
    unit: str
    noise: str
    method: str | None
    alpha: float
    ops: list[Operation]
    certified_ops: list[Operation]
    votes: dict[str, int]
    threshold: float | None
    fingerprint: str
    examples: list[Example]


class Limits(Result):
    """What a request may ask for."""

    texts: int
    tokens: int
    body_bytes: int
    votes: int
    deadline_ms: int


class ModelsResponse(Result):
    """The models and the limits."""

    models: list[ModelInfo]
    limits: Limits
    version: str


class Status(Result):
    """The state of the server."""

    status: str


class ReportAddress(Result):
    """Where a report is."""

    name: str
    url: str
    link: str = Field(description="Opens for an hour without the token, as in a browser; `url` if there is no token.")


class ReportList(Result):
    """The reports that are served."""

    reports: list[ReportAddress]


class ProblemDocument(Result):
    """An error (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str = Field(description="One sentence.")


# Examples of bodies and responses, by schema. FastAPI would drop every null from examples of its own.
_CERTIFICATE = Certificate(  # of a text of one word, whose two copies were enumerated
    label="pos",
    classes=("neg", "pos"),
    known=True,
    answer=1,
    length=1,
    noise=Deletion(FixedRate(0.9)),
    selection=(0, 0),
    looks=None,
    votes=(),
    exact=((0, 0), (1, 1)),
    seed=None,
    unit={"kind": "word"},
)
_CERTIFIED: dict[str, Any] = {
    "label": "pos",
    "radius": _CERTIFICATE.radius,
    "abstained": False,
    "score": 1.0,
    "length": 1,
    "alpha": 0.0,
    "ops": list(_CERTIFICATE.ops),
    "radii": {name: _CERTIFICATE.radius_for(name) for name in ("del", "ins", "sub", "edit")},
    "covers_every_text": _CERTIFICATE.covers_every_text,
    "deadline_reached": False,
    "calls": 2,
    "seconds": 0.001,
    "certificate": _CERTIFICATE.to_dict(),
}
_PREDICTED = {
    "label": "pos",
    "scores": {"neg": 0.03125, "pos": 0.96875},
    "deadline_reached": False,
    "calls": 32,
    "seconds": 0.001,
}
_MODEL: dict[str, Any] = {
    "name": "model",
    "default": True,
    "kind": "linear",
    "classes": ["neg", "pos"],
    "unit": "word",
    "noise": repr(_CERTIFICATE.noise),
    "method": "adaptdel",
    "alpha": 0.05,
    "ops": ["del", "ins", "sub"],
    "certified_ops": ["del", "ins", "sub"],
    "votes": {"select": 1000, "estimate": 4000},
    "threshold": None,
    "fingerprint": "0" * 64,
    "examples": [{"title": "A review", "text": TEXT, "label": "pos"}],
}
_LIMITS = {"texts": 64, "tokens": 20000, "body_bytes": 1048576, "votes": 20000, "deadline_ms": 60000}
EXAMPLES: dict[str, list[dict[str, Any]]] = {
    "PredictBody": [{"text": TEXT}],
    "CertifyBody": [
        {"text": TEXT},
        {"texts": [TEXT, "Not worth the ticket."], "alpha": 0.01, "ops": ["ins", "del"], "deadline_ms": 500},
    ],
    "VerifyBody": [{"certificate": _CERTIFICATE.to_dict()}],
    "CertifyResponse": [{"model": "model", "results": [_CERTIFIED]}],
    "PredictResponse": [{"model": "model", "results": [_PREDICTED]}],
    "VerifyResponse": [{"valid": True, "radius": _CERTIFICATE.radius, "reasons": []}],
    "ModelsResponse": [{"models": [_MODEL], "limits": _LIMITS, "version": __version__}],
    "Status": [{"status": "ready"}],
    "ReportList": [{"reports": [{"name": "run", "url": "/reports/run/", "link": "/reports/run/"}]}],
    "ProblemDocument": [
        {"type": "about:blank", "title": "Not Found", "status": 404, "detail": "there is no model 'x', only 'model'"}
    ],
}
