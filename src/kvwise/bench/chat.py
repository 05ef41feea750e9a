"""Owns one streamed request: what came back, and when its first token did.

It sends and times; it keeps no conversation and judges no answer.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

from kvwise.errors import EngineError

MODEL = "demo"
"""What the engine calls the model."""
READ_DEADLINE_S = 120
"""Longest silence of the engine within one answer."""

Message = dict[str, str]
_JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request brought.

    Attributes:
        ttft_s: seconds from sending the request until its first token was here.
        tokens: ids of the generated tokens.
        text: the same as text.
        prompt_tokens: tokens of the prompt.
        cached_tokens: tokens of the prompt that the engine did not compute.
    """

    ttft_s: float
    tokens: tuple[int, ...]
    text: str
    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Question:
    """A conversation to be answered.

    Attributes:
        name: what engine and cache call the request, so that it can be found in their records.
        messages: the conversation so far, the question last.
        tokens_max: how many tokens to generate at most.
        to_the_end: whether to generate all of them, even past the model's own end.
        hints: what kvwise should know of the request, such as `{"no_load": True}`.
    """

    path: ClassVar[str] = "/v1/chat/completions"
    name: str
    messages: list[Message]
    tokens_max: int
    to_the_end: bool = True
    hints: dict[str, bool] | None = None

    def body(self) -> dict[str, Any]:
        """The request as the engine's API wants it."""
        asked = {"messages": self.messages, "ignore_eos": self.to_the_end}
        return asked | _body(self.name, self.tokens_max, self.hints)


@dataclass(frozen=True, slots=True)
class Tokens:
    """A prompt of just these tokens; its attributes are those of a conversation."""

    path: ClassVar[str] = "/v1/completions"
    name: str
    prompt: list[int]
    tokens_max: int
    hints: dict[str, bool] | None = None

    def body(self) -> dict[str, Any]:
        """The request as the engine's API wants it."""
        asked = {"prompt": self.prompt, "ignore_eos": True}
        return asked | _body(self.name, self.tokens_max, self.hints)


def _body(name: str, tokens_max: int, hints: dict[str, bool] | None) -> dict[str, Any]:
    """What every request says."""
    body: dict[str, Any] = {
        "model": MODEL,
        "request_id": name,
        "max_tokens": tokens_max,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }
    if hints:
        body["kv_transfer_params"] = {"kvwise": hints}
    return body


def ask(port: int, question: Question | Tokens) -> Answer:
    """Send a question to the engine at `port` of this machine and read the answer to its end.

    Raises:
        EngineError: the engine refused the request or fell silent.
    """
    text = json.dumps(question.body())
    with _connection(port) as connection:
        connection.connect()
        started_s = time.perf_counter()
        connection.request("POST", question.path, text, _JSON)
        return _collect(_succeeded(connection), started_s)


def count_tokens(port: int, messages: list[Message]) -> int:
    """Tokens of the prompt that the engine would make of a conversation.

    Raises:
        EngineError: the engine did not say.
    """
    text = json.dumps({"model": MODEL, "messages": messages})
    with _connection(port) as connection:
        connection.request("POST", "/tokenize", text, _JSON)
        return int(json.loads(_succeeded(connection).read())["count"])


def version(port: int) -> str:
    """The engine's version.

    Raises:
        EngineError: the engine did not say.
    """
    with _connection(port) as connection:
        connection.request("GET", "/version")
        return str(json.loads(_succeeded(connection).read())["version"])


def metrics(port: int) -> str:
    """The engine's counters, as Prometheus reads them.

    Raises:
        EngineError: the engine did not say.
    """
    with _connection(port) as connection:
        connection.request("GET", "/metrics")
        return _succeeded(connection).read().decode()


def forget(port: int) -> None:
    """Empty the engine's own prefix cache; what kvwise holds stays.

    Raises:
        EngineError: the engine did not do it.
    """
    with _connection(port) as connection:
        connection.request("POST", "/reset_prefix_cache")
        _succeeded(connection).read()


def healthy(port: int) -> bool:
    """Whether an engine listens on this port and says that it is well."""
    try:
        with _connection(port) as connection:
            connection.request("GET", "/health")
            _succeeded(connection).read()
    except EngineError:
        return False
    return True


@contextmanager
def _connection(port: int) -> Iterator[http.client.HTTPConnection]:
    """A connection to the engine; whatever breaks on it is an `EngineError`."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=READ_DEADLINE_S)
    try:
        yield connection
    except (OSError, http.client.HTTPException) as error:
        raise EngineError(f"the engine broke off: {error!r}") from error
    finally:
        connection.close()


def _succeeded(connection: http.client.HTTPConnection) -> http.client.HTTPResponse:
    """The answer to what was just sent, if it is a success."""
    response = connection.getresponse()
    if response.status != http.client.OK:
        detail = response.read(2000).decode(errors="replace")
        raise EngineError(f"the engine answered {response.status}: {detail}")
    return response


def _events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """The data of each server-sent event, until the stream says that it is done."""
    while line := response.readline():
        data = line.removeprefix(b"data:").strip()
        if data == b"[DONE]":
            return
        if data:
            yield json.loads(data)


def _collect(response: http.client.HTTPResponse, started_s: float) -> Answer:
    """Read a stream to its end and put its pieces together."""
    ttft_s, tokens, pieces, usage = 0.0, list[int](), list[str](), dict[str, Any]()
    for event in _events(response):
        if "error" in event:
            raise EngineError(f"the engine failed in the middle of an answer: {event['error']}")
        for choice in event.get("choices", ()):
            new = choice.get("token_ids") or ()
            if new and not tokens:
                ttft_s = time.perf_counter() - started_s
            tokens.extend(new)
            pieces.append(choice.get("delta", {}).get("content") or "")
        usage = event.get("usage") or usage
    if not tokens:
        raise EngineError("the engine ended an answer without a token")
    details = usage.get("prompt_tokens_details") or {}
    return Answer(
        ttft_s=ttft_s,
        tokens=tuple(tokens),
        text="".join(pieces),
        prompt_tokens=usage.get("prompt_tokens", 0),
        cached_tokens=details.get("cached_tokens") or 0,
    )
