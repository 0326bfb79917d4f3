"""What goes over the wire: the bodies of requests and responses, and errors as RFC 9457 problem documents.

The OpenAPI document is made from these classes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator
from starlette.exceptions import HTTPException
from starlette.responses import Response

from adaptdel.core.checks import SMALLEST_ALPHA

PROBLEM_TYPE = "application/problem+json"
LONGEST_DETAIL = 600  # characters
STREAM_EVENT = {  # each event of a stream
    "type": "object",
    "properties": {
        "event": {"enum": ["votes", "look", "result", "failed", "done"]},
        "data": {"type": "string", "description": "JSON."},
    },
    "required": ["event", "data"],
}
PROBLEM = {  # the schema of an error
    "type": "object",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "One sentence."},
    },
    "required": ["type", "title", "status", "detail"],
}
Operation = Literal["del", "ins", "sub"]
Count = Annotated[int, Field(ge=1)]


def _encoded(text: Any) -> bytes:
    if not isinstance(text, str):
        raise ValueError("must be a string")
    return text.encode("utf-8", "surrogatepass")


# In UTF-8 while it waits: a single emoji makes every character of a `str` take 4 bytes.
Text = Annotated[bytes, BeforeValidator(_encoded), WithJsonSchema({"type": "string"})]


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


class VoteBudget(Body):
    """Numbers of votes; those that are left out are the model's."""

    select: Count | None = Field(None, description="Largest number of votes that select the answer.")
    estimate: Count | None = Field(None, description="Largest number of votes that bound its probability.")


class TextsBody(Body):
    """One text or several."""

    text: Text | None = Field(None, description="A text; give this or `texts`.")
    texts: Annotated[list[Text], Field(min_length=1, fail_fast=True)] | None = Field(
        None, description="Several texts; give this or `text`."
    )
    model: str | None = Field(None, description="The name of a model; the first one if it is left out.")
    deadline_ms: Count | None = Field(None, description="Time in milliseconds after which votes stop.")
    votes: VoteBudget | None = Field(None, description="The budget of votes; for a prediction, of `select` alone.")

    @model_validator(mode="after")
    def _text_or_texts(self) -> TextsBody:
        if (self.text is None) == (self.texts is None):
            raise ValueError("give either text or texts")
        return self

    def all_texts(self) -> list[bytes]:
        """The texts, also if it is a single one."""
        return [self.text] if self.text is not None else list(self.texts or [])


class PredictBody(TextsBody):
    """A request for predictions."""

    @model_validator(mode="after")
    def _no_estimation(self) -> PredictBody:
        if self.votes is not None and self.votes.estimate is not None:
            raise ValueError("votes.estimate has no meaning for a prediction: leave it out")
        return self


class FilterBody(TextsBody):
    """What a mail server or a gateway asks a filter, which proves the flags of the class that it protects."""


class GuardrailBody(BaseModel):
    """A request of LiteLLM's generic guardrail API, of which only the texts are read."""

    texts: list[str] | None = None


class CertifyBody(TextsBody):
    """A request for certificates."""

    alpha: float | None = Field(
        None, ge=SMALLEST_ALPHA, lt=1, description="Largest probability that a certificate is wrong."
    )
    ops: Literal["edit"] | Annotated[list[Operation], Field(fail_fast=True)] | None = Field(
        None, description="Operations of the attacker."
    )
    influence: bool = Field(
        False, description="Also return for every token the votes with it and without it, or its score; see `margin`."
    )
    stream: bool = Field(False, description="Answer with server-sent events as votes come.")


class Result(BaseModel):
    """What a response holds; further fields may be added in later versions."""

    model_config = ConfigDict(protected_namespaces=())


class CertifyResult(Result):
    """The answer to a text and what is proven about it; or only `error`, if a text of a batch failed."""

    label: Any = Field(description="The answer; null if a deadline came before the first vote.")
    radius: int = Field(description="So many edits cannot change the answer; -1 if nothing is certified.")
    abstained: bool
    score: float | None = Field(description="The share of votes for the label; null for an exact model.")
    length: int | None = Field(description="The number of tokens.")
    alpha: float
    ops: list[Operation]
    radii: dict[str, int] = Field(description="The radius for each operation alone, and for all (`edit`).")
    covers_every_text: bool
    deadline_reached: bool
    calls: int = Field(description="The number of votes.")
    seconds: float
    certificate: dict[str, Any] | None = Field(description="The votes or scores, for `adaptdel verify`.")
    character_radius: int | None = Field(None, description="So many character edits cannot change the answer.")
    padded_radius: int = Field(
        description="The same with any text before and after; -1 if such text may change the answer."
    )
    positions: int = Field(description="Positions where any text may also be inserted; -1 if not even padding may be.")
    segment: tuple[int, int] | None = Field(
        None, description="The tokens from the first number up to the second decide alone, no matter the rest."
    )
    tokens: list[Any] | None = None
    influence: list[dict[str, float]] | None = Field(
        None,
        description="With `influence`: votes on copies with each token (`kept`, of them `for` the label) and without "
        "it (`deleted`, `for_when_deleted`); of an enumerated text, copies count with their probability.",
    )
    margin: dict[str, Any] | None = Field(
        None,
        description="With `influence`, of an exact model: the closest class (`rival`), what the edits may give it "
        "together (`slack`), what an `insertion` and the `deletion` of each token give, and a `counterexample`.",
    )


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
    scores: dict[str, float] = Field(description="The share of votes for every class, or its exact score.")
    deadline_reached: bool
    calls: int
    seconds: float


class PredictResponse(Result):
    """Results in the order of the texts."""

    model: str
    results: list[PredictResult | TextError]


def printable(text: str) -> str:
    r"""A message as a single line of bounded length, whatever a client put into it.

    >>> printable("a field\n\ud800")
    'a field\\n\\ud800'
    """
    if len(text) > LONGEST_DETAIL:
        text = text[: LONGEST_DETAIL - 1] + "…"
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class Problem(HTTPException):
    """An error that a client is told.

    Args:
        status: the HTTP status.
        detail: one sentence that says what is wrong and what to do; what a client sent is escaped and shortened in it.
        headers: further headers of the response.
    """

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, printable(detail), headers)

    def response(self) -> Response:
        """The problem document."""
        title = HTTPStatus(self.status_code).phrase
        document = {"type": "about:blank", "title": title, "status": self.status_code, "detail": self.detail}
        return Response(json.dumps(document).encode(), self.status_code, self.headers, PROBLEM_TYPE)


def shutting_down() -> Problem:
    """The server was told to stop."""
    return Problem(
        503, "the server is shutting down: send the request again to another server or later", {"Retry-After": "5"}
    )


def internal_error() -> Problem:
    """A fault of the server, which says nothing about it."""
    return Problem(500, "the server failed on this request: the error is in its log")
