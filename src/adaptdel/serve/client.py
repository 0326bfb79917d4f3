"""A client of a server."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, overload

import httpx2

from adaptdel.certification.certificate import Certificate
from adaptdel.certification.exact import ExactCertificate, certificate_from_dict
from adaptdel.core.checks import check_int
from adaptdel.files import parse
from adaptdel.serve.configuration import PORT

RETRIED = (429, 503)
LONGEST_WAIT = 30.0  # seconds between two attempts, whatever the server asks for


class ServeError(RuntimeError):
    """A server refused a request, or could not be reached.

    Attributes:
        status: the HTTP status; 0 if there was no answer.
        detail: the server's sentence.
    """

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail if not status else f"{detail} (status {status})")
        self.status, self.detail = status, detail


@dataclass(frozen=True)
class Prediction:
    """The answer to a text, without a certificate; see `CertifiedText`.

    Attributes:
        scores: the share of votes for every class, or its exact score.
    """

    label: Any
    scores: Mapping[str, float]
    calls: int
    seconds: float
    deadline_reached: bool


@dataclass(frozen=True)
class CertifiedText:
    """The answer to a text and its certificate; /openapi.json describes the fields.

    Attributes:
        label: the answer; None if a deadline came before the first vote.
        certificate: the votes or scores and what they prove; None if a deadline came before the first look.
    """

    label: Any
    certificate: Certificate | ExactCertificate | None
    radii: Mapping[str, int]
    deadline_reached: bool
    calls: int
    seconds: float
    tokens: Sequence[Any] | None = None
    influence: Sequence[Mapping[str, float]] | None = None
    margin: Mapping[str, Any] | None = None

    @property
    def radius(self) -> int:
        """The number of edits that cannot change the answer, from the votes or scores; −1 if nothing is certified."""
        return -1 if self.certificate is None else self.certificate.radius

    @property
    def abstained(self) -> bool:
        """Whether nothing is certified."""
        return self.radius < 0


@dataclass(frozen=True)
class StreamEvent:
    """An event of a stream: "votes", "look", "result", "failed" or "done", and its values."""

    name: str
    values: Mapping[str, Any]


class Client:
    """Calls a server. It may be used by several threads. What is refused with 429 or 503 is sent again later.

    Args:
        url: the address of the server.
        token: the token of the server, if it has one.
        model: the name of the model; None for the server's first one.
        timeout: seconds to wait for an answer.
        retries: how often a refused request is sent again.
    """

    def __init__(
        self,
        url: str = f"http://127.0.0.1:{PORT}",
        *,
        token: str | None = None,
        model: str | None = None,
        timeout: float = 90.0,
        retries: int = 4,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"url must be an address such as http://127.0.0.1:{PORT}, got {url!r}")
        self.url, self.model = url.rstrip("/"), model
        self.retries = check_int("retries", retries)
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._http = httpx2.Client(base_url=self.url, headers=headers, timeout=timeout)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def models(self) -> dict[str, Any]:
        """The models with their settings, the limits and the version, as the server tells them."""
        return self._call("GET", "/v1/models")

    @overload
    def predict(self, texts: str, **options: Any) -> Prediction: ...
    @overload
    def predict(self, texts: Sequence[str], **options: Any) -> list[Prediction]: ...
    def predict(self, texts: str | Sequence[str], **options: Any) -> Prediction | list[Prediction]:
        """Classify a text or a list of texts. Options: ``votes={"select": ...}``, ``deadline_ms``, ``model``."""
        results = self._results("/v1/predict", texts, options)
        names = ("label", "scores", "calls", "seconds", "deadline_reached")
        answers = [Prediction(**{name: result[name] for name in names}) for result in results]
        return answers[0] if isinstance(texts, str) else answers

    @overload
    def certify(self, texts: str, **options: Any) -> CertifiedText: ...
    @overload
    def certify(self, texts: Sequence[str], **options: Any) -> list[CertifiedText]: ...
    def certify(self, texts: str | Sequence[str], **options: Any) -> CertifiedText | list[CertifiedText]:
        """Certify a text or a list of texts. Options: the fields of `CertifyBody`, such as ``alpha`` and ``ops``."""
        answers = [_certified(result) for result in self._results("/v1/certify", texts, options)]
        return answers[0] if isinstance(texts, str) else answers

    def stream(self, texts: str | Sequence[str], **options: Any) -> Iterator[StreamEvent]:
        """Certify, and yield votes, looks and results as they come. Leaving the iterator cancels the request."""
        body = self._body(texts, {**options, "stream": True})
        with self._sent("POST", "/v1/certify", body) as response:
            name = ""
            for line in response.iter_lines():
                if line.startswith("event: "):
                    name = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    yield StreamEvent(name, parse(line.removeprefix("data: ")))
        if name != "done":
            raise ServeError(0, "the stream ended before the last event: send the request again")

    def _body(self, texts: str | Sequence[str], options: Mapping[str, Any]) -> dict[str, Any]:
        named = {"model": self.model, **options}
        given = {name: value for name, value in named.items() if value is not None}
        return {"text": texts, **given} if isinstance(texts, str) else {"texts": list(texts), **given}

    def _results(self, path: str, texts: str | Sequence[str], options: Mapping[str, Any]) -> list[dict[str, Any]]:
        results: list[dict[str, Any]] = self._call("POST", path, self._body(texts, options))["results"]
        for number, result in enumerate(results):
            if "error" in result:
                raise ServeError(422, f"text {number}: {result['error']}")
        return results

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        with self._sent(method, path, body) as response:
            values: dict[str, Any] = parse(response.read(), finite=False)
        return values

    @contextmanager
    def _sent(self, method: str, path: str, body: Mapping[str, Any] | None) -> Iterator[httpx2.Response]:
        """A good response, whose body is read by the caller; what is refused for now is sent again."""
        content = None if body is None else json.dumps(body).encode()
        headers = {} if body is None else {"Content-Type": "application/json"}
        try:
            for attempt in range(self.retries + 1):
                with self._http.stream(method, path, content=content, headers=headers) as response:
                    if response.status_code == 200:
                        yield response
                        return
                    response.read()
                if response.status_code not in RETRIED or attempt == self.retries:
                    raise _error(response)
                time.sleep(_seconds(response))
        except httpx2.HTTPError as error:
            raise ServeError(0, f"{self.url} does not answer: {error or type(error).__name__}") from None


def _certified(result: Mapping[str, Any]) -> CertifiedText:
    values = result["certificate"]
    certificate = None if values is None else certificate_from_dict(values)
    names = ("label", "radii", "deadline_reached", "calls", "seconds", "tokens", "influence", "margin")
    return CertifiedText(certificate=certificate, **{name: result.get(name) for name in names})  # type: ignore[arg-type]


def _error(response: httpx2.Response) -> ServeError:
    try:
        detail = str(parse(response.content)["detail"])
    except (ValueError, TypeError, KeyError):  # from a proxy
        detail = f"the server answered {response.status_code} {response.reason_phrase}"
    return ServeError(response.status_code, detail)


def _seconds(response: httpx2.Response) -> float:
    """How long to wait before the next attempt."""
    text = response.headers.get("Retry-After", "1")
    return min(float(text), LONGEST_WAIT) if text.isdigit() else 1.0
