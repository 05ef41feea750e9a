"""Stand-ins that tests of the bench share: a progress that remembers, an engine that is none."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Notes:
    """A `Progress` that keeps what it was told."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.finished: list[str] = []
        self.noted: list[str] = []

    def now(self, text: str) -> None:
        """Remember what is happening."""
        self.shown.append(text)

    def done(self, text: str) -> None:
        """Remember a finished step."""
        self.finished.append(text)

    def note(self, text: str) -> None:
        """Remember what was announced."""
        self.noted.append(text)


@dataclass
class FakeEngine:
    """What an engine's HTTP API would answer, and what it was asked.

    Attributes:
        stream: server-sent events of every answer.
        metrics: its counters, as text.
        status: the HTTP status of everything.
        port: where it listens.
        asked: path and body of each request, in order.
    """

    stream: list[Any] = field(default_factory=list)
    metrics: str = ""
    status: int = 200
    port: int = 0
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def answer(self, path: str, body: dict[str, Any]) -> bytes:
        """The body of the response to one request."""
        if path == "/v1/chat/completions":
            events = [e if isinstance(e, str) else json.dumps(e) for e in self.stream]
            return "".join(f"data: {event}\n\n" for event in events).encode()
        if path == "/metrics":
            return self.metrics.encode()
        if path == "/tokenize":
            words = sum(len(message["content"].split()) for message in body["messages"])
            return json.dumps({"count": words * 4 // 3 + 7 * len(body["messages"])}).encode()
        return json.dumps({"version": "0.32.0"}).encode()


def said(text: str, *tokens: int) -> dict[str, Any]:
    """One event of a stream."""
    return {"choices": [{"delta": {"content": text}, "token_ids": list(tokens)}]}


def used(prompt: int, cached: int) -> dict[str, Any]:
    """The event at the end of a stream that counts tokens."""
    details = {"cached_tokens": cached}
    return {"choices": [], "usage": {"prompt_tokens": prompt, "prompt_tokens_details": details}}


@contextmanager
def serving(engine: FakeEngine) -> Iterator[FakeEngine]:
    """Let `engine` answer on a free port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._respond({})

        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            self._respond(json.loads(self.rfile.read(length) or b"{}"))

        def _respond(self, body: dict[str, Any]) -> None:
            engine.asked.append((self.path, body))
            answer = engine.answer(self.path, body)
            self.send_response(engine.status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        engine.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield engine
        finally:
            server.shutdown()
            thread.join(10)
