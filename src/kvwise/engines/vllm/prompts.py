"""Prompts: what the scheduler half remembers of each request, above all its keys.

Keys grow with the request and are never computed twice. Nothing here talks to anybody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvwise.core.hints import NO_HINTS, PAUSES, SECONDS_MAX, Hints
from kvwise.core.keys import KEY_BYTES, ROOT, adopt_keys
from kvwise.engines.identity import adapter_digest
from kvwise.errors import EngineError
from kvwise.live.messages import Plan

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest
    from vllm.v1.request import Request

PARAMS = "kvwise"
"""Where hints stand in a request's `kv_transfer_params`, and the decision in its answer's."""

SHOWN_CHARS_MAX = 60
"""Of a value that is no hint, in the message that says so."""

PROBLEM_CHARS_MAX = 600
"""Of that message."""


@dataclass(frozen=True, slots=True)
class Grid:
    """How tokens, blocks and chunks relate in one namespace.

    Attributes:
        space: the namespace's digest.
    """

    space: bytes
    block_tokens: int
    chunk_tokens: int

    @property
    def blocks(self) -> int:
        """Blocks of one chunk."""
        return self.chunk_tokens // self.block_tokens


@dataclass(slots=True)
class Prompt:
    """One request.

    Attributes:
        extra: tagged fields of its keys that vLLM's own hashes do not keep apart.
        hints: what the caller wants; both are set when the request cannot be identified.
        keys: of its whole chunks, joined.
        load_limit: chunks, from the first, that may still be offered for loading.
        admitted: whether vLLM has given it blocks, so that it comes before those that still wait.
        stored: chunks, from the first, that need not be offered for storing any more.
        plan: the promise that stands, if any.
        planned_for: tokens on the device, and chunks asked about, when it was made.
        layered: whether the load of that plan is for the step that is being ordered.
        sources: tokens of the last load by tier.
        outcome: what its answer will say about the load.
    """

    request: Request
    extra: tuple[tuple[str, bytes], ...]
    hints: Hints
    keys: bytearray = field(default_factory=bytearray)
    load_limit: int = 1 << 60
    admitted: bool = False
    stored: int = 0
    plan: Plan | None = None
    planned_for: tuple[int, int] = (0, 0)
    planned_ns: int = 0
    layered: bool = False
    sources: dict[str, int] = field(default_factory=dict)
    outcome: dict[str, object] = field(default_factory=dict)
    last: bytes = b""

    @property
    def name(self) -> str:
        """VLLM's name for the request."""
        return str(self.request.request_id)

    @property
    def left_tokens(self) -> int:
        """Tokens of the prompt that are still to be computed, those of this step included."""
        return max(0, int(self.request.num_prompt_tokens - self.request.num_computed_tokens))

    def grow(self, grid: Grid) -> int:
        """Make keys of chunks that became whole; the answer is how many there are.

        vLLM may take the last token of a session back, and with it a hash: then all keys go.
        """
        have, hashes = len(self.keys) // KEY_BYTES, self.request.block_hashes
        whole = len(hashes) // grid.blocks
        if have and (have > whole or hashes[have * grid.blocks - 1] != self.last):
            self.keys.clear()
            have = 0
        if whole > have:
            ends = range((have + 1) * grid.blocks - 1, whole * grid.blocks, grid.blocks)
            self.keys += adopt_keys(grid.space, (hashes[end] for end in ends), self.extra)
            self.last = hashes[whole * grid.blocks - 1]
        return whole

    def key(self, chunk: int) -> bytes:
        """Key of a chunk; that of chunk -1 is the root."""
        return bytes(self.keys[chunk * KEY_BYTES : (chunk + 1) * KEY_BYTES]) if chunk >= 0 else ROOT

    def some_keys(self, first: int, end: int) -> bytes:
        """Keys of chunks `first` up to `end`, joined."""
        return bytes(self.keys[first * KEY_BYTES : end * KEY_BYTES])


def backlog(ahead: Iterable[Prompt]) -> tuple[int, float]:
    """What an engine has still to compute of these prompts: tokens, and pairs of n * (c + n / 2).

    What vLLM gives a load that runs counts as computed, so only the rest of its prompt is left.
    """
    tokens, pairs = 0, 0.0
    for prompt in ahead:
        if new := prompt.left_tokens:
            tokens += new
            pairs += new * (prompt.request.num_computed_tokens + new / 2)
    return tokens, pairs


class Adapters:
    """Digests of the adapters in use, by what vLLM calls them.

    vLLM keeps an adapter's weights once loaded, whatever happens to its files; so does its digest.
    """

    def __init__(self) -> None:
        """No adapter is known yet."""
        self._digests: dict[tuple[int, str], bytes] = {}

    def digest(self, adapter: LoRARequest) -> bytes:
        """Content digest of an adapter, read when it is first used or replaced in place.

        Raises:
            EngineError: its files cannot be read.
        """
        name = (adapter.lora_int_id, adapter.lora_path)
        if name not in self._digests or adapter.load_inplace:
            self._digests[name] = adapter_digest(Path(adapter.lora_path))
        return self._digests[name]


def prompt_of(request: Request, adapters: Adapters) -> Prompt:
    """What is remembered of a new request. One that cannot be identified is left alone."""
    extra: list[tuple[str, bytes]] = []
    hints, problem = _hints(request.kv_transfer_params)
    if request.cache_salt:
        extra.append(("salt", str(request.cache_salt).encode("utf-8", "surrogatepass")))
    if request.lora_request is not None:
        try:
            extra.append(("adapter", adapters.digest(request.lora_request)))
        except EngineError as error:
            hints, problem = Hints(no_store=True, no_load=True), str(error)
    prompt = Prompt(request, tuple(extra), hints)
    if problem:
        prompt.outcome["problem"] = problem
    return prompt


def _hints(params: Mapping[str, object] | None) -> tuple[Hints, str]:
    """The caller's hints, and what of them is no hint; that is ignored, and the rest counts."""
    given = (params or {}).get(PARAMS)
    if given is None:
        return NO_HINTS, ""
    if not isinstance(given, Mapping):
        return NO_HINTS, f"{PARAMS} is no table of hints: {_shown(given)}"
    hints, problems = NO_HINTS, list[str]()
    for name, value in given.items():
        if name not in _HINTS:
            problems.append(f"there is no hint {_shown(name)}, only {', '.join(_HINTS)}")
            continue
        read, allowed = _HINTS[name]
        try:
            change: dict[str, Any] = {name: read(value)}
            better = replace(hints, **change)
        except (ArithmeticError, LookupError, TypeError):
            better = None
        if better is None or not better.is_sane:
            problems.append(f"{name} = {_shown(value)} is ignored: write {allowed}")
        else:
            hints = better
    return hints, "; ".join(problems)[:PROBLEM_CHARS_MAX]


def _shown(value: object) -> str:
    """A value that somebody sent, as far as a message has room for it."""
    return repr(value)[:SHOWN_CHARS_MAX]


def _flag(value: object) -> bool:
    """True or false, and nothing that is like it."""
    if not isinstance(value, bool):
        raise TypeError(value)
    return value


def _seconds(value: object) -> float:
    """A number of seconds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(value)
    return float(value)


def _priority(value: object) -> float:
    """A number, or the word for one."""
    return _PRIORITIES[value] if isinstance(value, str) else _seconds(value)


def _pause(value: object) -> str:
    """One of the words for what a session waits for."""
    if value not in PAUSES[1:]:
        raise LookupError(value)
    return str(value)


_PRIORITIES = {"low": -1.0, "normal": 0.0, "high": 1.0}
_SECONDS_SAID = f"seconds, from 0 to {SECONDS_MAX:.0f}"
_HINTS: dict[str, tuple[Callable[[object], bool | float | str], str]] = {
    "no_store": (_flag, "true or false"),
    "no_load": (_flag, "true or false"),
    "no_reuse": (_flag, "true or false"),
    "pin_s": (_seconds, _SECONDS_SAID),
    "ttl_s": (_seconds, _SECONDS_SAID),
    "priority": (_priority, "low, normal, high, or a number from -1 to 1"),
    "pause": (_pause, "tool or user"),
}
