"""A client of a server, with the standard library alone; and clients in the shape of scikit-learn and TextAttack."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, overload
from urllib.parse import urlsplit

import numpy as np

from adaptdel.certification.certificate import Certificate
from adaptdel.core.checks import FloatArray, check_int
from adaptdel.files import parse
from adaptdel.serve.configuration import PORT

RETRIED = (429, 503)
LONGEST_WAIT = 30.0  # seconds between two attempts, whatever the server asks for
LONGEST_RESPONSE = 2**28  # bytes


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
    """The answer to a text, without a certificate.

    Attributes:
        label: the answer; None if a deadline came before the first vote.
        scores: the share of votes for every class.
        calls: the number of votes.
        seconds: the time on the server.
        deadline_reached: whether a deadline ended the votes.
    """

    label: Any
    scores: Mapping[str, float]
    calls: int
    seconds: float
    deadline_reached: bool


@dataclass(frozen=True)
class CertifiedText:
    """The answer to a text and its certificate.

    Attributes:
        label: the answer; None if a deadline came before the first vote.
        certificate: the votes and what they prove; None if a deadline came before the first look.
        radii: the radius for each operation alone, and for all ("edit").
        deadline_reached: whether a deadline ended the votes.
        calls: the number of votes.
        seconds: the time on the server.
        tokens: the tokens, if influence was asked for.
        influence: for every token the votes with and without it, if that was asked for.
    """

    label: Any
    certificate: Certificate | None
    radii: Mapping[str, int]
    deadline_reached: bool
    calls: int
    seconds: float
    tokens: Sequence[Any] | None = None
    influence: Sequence[Mapping[str, float]] | None = None

    @property
    def radius(self) -> int:
        """The number of edits that cannot change the answer, derived from the votes; −1 if nothing is certified."""
        return -1 if self.certificate is None else self.certificate.radius

    @property
    def abstained(self) -> bool:
        """Whether nothing is certified."""
        return self.radius < 0


@dataclass(frozen=True)
class StreamEvent:
    """An event of a stream: "votes", "look", "result", "failed" or "done", and its values."""

    name: str
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Verification:
    """Whether a certificate is valid, the radius, and the reasons why it is not valid."""

    valid: bool
    radius: int
    reasons: Sequence[str]


class Client:
    """Calls a server. It may be used by several threads.

    A request that is refused with 429 or 503 is sent again after the time that the server names.

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
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"url must be an address such as http://127.0.0.1:{PORT}, got {url!r}")
        self.url, self.model, self.timeout = url.rstrip("/"), model, timeout
        self.retries = check_int("retries", retries)
        self._parts, self._token = parts, token
        self._idle: list[HTTPConnection] = []
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Client({self.url!r}, model={self.model!r})"

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def models(self) -> dict[str, Any]:
        """The models with their settings, the limits and the version, as the server tells them."""
        return self._call("GET", "/v1/models")

    @overload
    def predict(self, texts: str, **options: Any) -> Prediction: ...
    @overload
    def predict(self, texts: Sequence[str], **options: Any) -> list[Prediction]: ...
    def predict(self, texts: str | Sequence[str], **options: Any) -> Prediction | list[Prediction]:
        """Classify a text or a list of texts.

        Args:
            texts: the text or texts.
            options: ``votes={"select": ...}``, ``deadline_ms``, ``model``.
        """
        results = self._results("/v1/predict", texts, options)
        names = ("label", "scores", "calls", "seconds", "deadline_reached")
        answers = [Prediction(**{name: result[name] for name in names}) for result in results]
        return answers[0] if isinstance(texts, str) else answers

    @overload
    def certify(self, texts: str, **options: Any) -> CertifiedText: ...
    @overload
    def certify(self, texts: Sequence[str], **options: Any) -> list[CertifiedText]: ...
    def certify(self, texts: str | Sequence[str], **options: Any) -> CertifiedText | list[CertifiedText]:
        """Certify a text or a list of texts.

        Args:
            texts: the text or texts.
            options: ``alpha``, ``ops``, ``votes={"select": ..., "estimate": ...}``, ``deadline_ms``, ``influence``,
                ``model``.
        """
        answers = [_certified(result) for result in self._results("/v1/certify", texts, options)]
        return answers[0] if isinstance(texts, str) else answers

    def stream(self, texts: str | Sequence[str], **options: Any) -> Iterator[StreamEvent]:
        """Certify, and yield votes, looks and results as they come. Leaving the iterator cancels the request."""
        body = self._body(texts, {**options, "stream": True})
        connection, response = self._send("POST", "/v1/certify", body)
        try:
            name = ""
            for line in _lines(response):
                if line.startswith("event: "):
                    name = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    yield StreamEvent(name, parse(line.removeprefix("data: ")))
            if name != "done":
                raise ServeError(0, "the stream ended before the last event: send the request again")
        except (OSError, HTTPException) as error:
            raise ServeError(0, f"the stream from {self.url} broke off: {error}") from None
        finally:
            response.close()
            connection.close()

    def verify(self, certificate: Certificate | Mapping[str, Any]) -> Verification:
        """Let the server derive a certificate again from its votes."""
        values = certificate.to_dict() if isinstance(certificate, Certificate) else dict(certificate)
        told = self._call("POST", "/v1/verify", {"certificate": values})
        return Verification(told["valid"], told["radius"], told["reasons"])

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
        connection, response = self._send(method, path, body)
        try:
            content = response.read(LONGEST_RESPONSE)
        except (OSError, HTTPException) as error:
            connection.close()
            raise ServeError(0, f"the answer from {self.url} broke off: {error}") from None
        self._keep(connection, response)
        values: dict[str, Any] = parse(content, finite=False)
        return values

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None) -> tuple[HTTPConnection, HTTPResponse]:
        """The response with a good status; what is refused for now is sent again."""
        content = None if body is None else json.dumps(body).encode()
        for attempt in range(self.retries + 1):
            connection, response = self._exchange(method, path, content)
            if response.status == 200:
                return connection, response
            refused = _error(response)
            wait = _seconds(response)
            self._keep(connection, response)
            if response.status not in RETRIED or attempt == self.retries:
                raise refused
            time.sleep(wait)
        raise AssertionError

    def _exchange(self, method: str, path: str, content: bytes | None) -> tuple[HTTPConnection, HTTPResponse]:
        """Send a request, over a connection that is open if there is one; such a connection may have been closed."""
        headers = {"Accept": "application/json, text/event-stream"}
        if content is not None:
            headers["Content-Type"] = "application/json"
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        while True:
            with self._lock:
                reused = self._idle.pop() if self._idle else None
            connection = reused or self._connect()
            try:
                with suppress(BrokenPipeError, ConnectionResetError):  # a body that is too large is refused early
                    connection.request(method, self._parts.path.rstrip("/") + path, content, headers)
                return connection, connection.getresponse()
            except (OSError, HTTPException) as error:
                connection.close()
                if reused is None or isinstance(error, TimeoutError):
                    raise ServeError(0, f"{self.url} does not answer: {error or type(error).__name__}") from None

    def _connect(self) -> HTTPConnection:
        host, port = str(self._parts.hostname), self._parts.port
        if self._parts.scheme == "https":
            return HTTPSConnection(host, port, timeout=self.timeout, context=ssl.create_default_context())
        return HTTPConnection(host, port, timeout=self.timeout)

    def _keep(self, connection: HTTPConnection, response: HTTPResponse) -> None:
        """Use a connection again if its response was read to the end."""
        if response.will_close or not response.isclosed():
            connection.close()
            return
        with self._lock:
            self._idle.append(connection)


class RemoteClassifier:
    """A server as a classifier: ``predict`` and ``predict_proba`` as in scikit-learn.

    Called with a list of texts, it returns scores, as TextAttack expects of a model wrapper.

    Args:
        client: the client.
        options: of `Client.predict`, such as ``votes={"select": 1000}``.

    Attributes:
        classes_: the labels, in the order of the scores.
    """

    def __init__(self, client: Client, **options: Any) -> None:
        self.client, self.options = client, options
        told = client.models()
        models = {model["name"]: model for model in told["models"]}
        name = options.get("model") or client.model or next(iter(models))
        if name not in models:
            raise ServeError(404, f"there is no model {name!r}, only {', '.join(map(repr, models))}")
        self.classes_ = np.array(models[name]["classes"])
        self._texts = int(told["limits"]["texts"])

    def predict(self, X: Sequence[str]) -> Any:
        """The answer to every text, shape (texts,)."""
        return np.array([answer.label for answer in self._answers(X)])

    def predict_proba(self, X: Sequence[str]) -> FloatArray:
        """The share of votes for every class, shape (texts, classes)."""
        names = [str(label) for label in self.classes_.tolist()]
        rows = [[answer.scores[name] for name in names] for answer in self._answers(X)]
        return np.array(rows, dtype=np.float64).reshape(len(rows), len(names))

    __call__ = predict_proba

    def _answers(self, X: Sequence[str]) -> list[Prediction]:
        texts = list(X)
        parts = [texts[start : start + self._texts] for start in range(0, len(texts), self._texts)]
        return [answer for part in parts for answer in self.client.predict(part, **self.options)]


def _certified(result: Mapping[str, Any]) -> CertifiedText:
    values = result["certificate"]
    certificate = None if values is None else Certificate.from_dict(values)
    names = ("label", "radii", "deadline_reached", "calls", "seconds", "tokens", "influence")
    return CertifiedText(certificate=certificate, **{name: result.get(name) for name in names})  # type: ignore[arg-type]


def _lines(response: HTTPResponse) -> Iterator[str]:
    while line := response.readline(LONGEST_RESPONSE):
        yield line.decode().rstrip("\r\n")


def _error(response: HTTPResponse) -> ServeError:
    detail = f"the server answered {response.status} {response.reason}"
    with suppress(ValueError, OSError, HTTPException):
        values = parse(response.read(2**16))
        if isinstance(values, dict) and isinstance(values.get("detail"), str):
            detail = values["detail"]
    return ServeError(response.status, detail)


def _seconds(response: HTTPResponse) -> float:
    """How long to wait before the next attempt."""
    text = response.headers.get("Retry-After", "1")
    return min(float(text), LONGEST_WAIT) if text.isdigit() else 1.0
