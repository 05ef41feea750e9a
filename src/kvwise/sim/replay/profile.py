"""Profiles: how fast a model computes on some machine, and what its KV weighs. Data and one fit.

A profile is dated and says where its numbers are from; a file with the same keys replaces it. The
default is not measured here: it is a planning table's times of whole prefills, fitted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from msgspec import Meta, Struct

from kvwise.errors import ConfigError
from kvwise.sim.replay.settings import (
    SECONDS_MAX,
    Bytes,
    Count,
    Misfit,
    Rate,
    Seconds,
    read_toml,
    understand,
)

TOKEN_S_MAX, PAIR_S_MAX = 10.0, 1.0

Row = tuple[Count, Annotated[float, Meta(gt=0, le=1e6)]]
"""Tokens of a prompt, and the seconds its whole prefill takes."""


class Profile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How fast one engine is: n new tokens after c cached ones take a + b*n + g*n*(c + n/2).

    Attributes:
        as_of, source: the date of the numbers, and where they are from.
        kv_bytes_per_token: over all ranks of the engine.
        step_s, token_s, pair_s: a, b and g.
        decode_step_s: least time of a step in which anybody decodes.
        decode_token_s: what each decoding request adds to a step.
        link_bytes_per_s: between memory and devices, over all ranks, in each direction.
        link_latency_s: of one copy.
    """

    name: str
    as_of: str
    source: str
    kv_bytes_per_token: Bytes
    step_s: Seconds
    token_s: Annotated[float, Meta(gt=0, le=TOKEN_S_MAX)]
    pair_s: Annotated[float, Meta(ge=0, le=PAIR_S_MAX)]
    decode_step_s: Seconds
    decode_token_s: Seconds
    link_bytes_per_s: Rate
    link_latency_s: Seconds = 0.0

    def compute_s(self, new: int, cached: int) -> float:
        """Seconds to compute new tokens after cached ones, without the fixed part of a step."""
        return self.token_s * new + self.pair_s * new * (cached + new / 2)

    def load_s(self, size_bytes: int) -> float:
        """Seconds to copy bytes to the device while nobody else copies."""
        return self.link_latency_s + size_bytes / self.link_bytes_per_s if size_bytes else 0.0


def fit(rows: Sequence[tuple[int, float]]) -> tuple[float, float, float]:
    """a, b and g with the least relative errors over prefills of whole prompts; none is negative.

    Raises:
        ConfigError: there are too few different lengths, or no machine has such times.
    """
    if len({tokens for tokens, _ in rows}) < len(("a", "b", "g")):
        raise ConfigError("prefill_rows: three prompts of different lengths are needed at least")
    tokens = np.array([row[0] for row in rows], dtype=float)
    seconds = np.array([row[1] for row in rows], dtype=float)
    features = np.stack([np.ones_like(tokens), tokens, tokens * tokens / 2], axis=1)
    scaled = features / seconds[:, None]
    used = [0, 1, 2]
    weights = np.zeros(3)
    while used:
        found, *_ = np.linalg.lstsq(scaled[:, used], np.ones_like(seconds), rcond=None)
        if (found >= 0).all():
            weights[used] = found
            break
        used.pop(int(found.argmin()))
    fixed, token, pair = (float(weight) for weight in weights)
    if not 0 < token <= TOKEN_S_MAX or pair > PAIR_S_MAX or fixed > SECONDS_MAX:
        raise ConfigError(
            "prefill_rows: these times fit no law a + b*n + g*n*n/2 whose b is above 0: "
            "seconds grow with tokens at least as fast as they do"
        )
    return fixed, token, pair


LLAMA_70B_ROWS = ((2_048, 0.0859), (8_192, 0.3443), (32_768, 1.5359), (131_072, 9.3086))
"""Seconds of whole prefills of Llama-3.1-70B on 8 H100 SXM with tensor parallelism, batch 1."""


def _default() -> Profile:
    step_s, token_s, pair_s = fit(LLAMA_70B_ROWS)
    return Profile(
        name="llama-3.1-70b-8xh100",
        as_of="2026-11",
        source="AIConfigurator-core 0.12 tables (vLLM, TP 8, batch 1), fitted; "
        "link: 8 x 55 GB/s pinned PCIe Gen5; decode: weights over 80 % of the HBM rate",
        kv_bytes_per_token=327_680,
        step_s=step_s,
        token_s=token_s,
        pair_s=pair_s,
        decode_step_s=0.010,
        decode_token_s=0.0002,
        link_bytes_per_s=8 * 55e9,
        link_latency_s=2e-5,
    )


PROFILES = {profile.name: profile for profile in (_default(),)}
"""The profiles that come with the simulator, by name."""

DEFAULT = _default().name


def read_profile(path: Path) -> Profile:
    """The profile in a file.

    Raises:
        ConfigError: it is none; the message names the key.
    """
    return profile_of(read_toml(path), str(path))


def profile_of(values: Mapping[str, object], source: str) -> Profile:
    """A profile from keys; what is not given is as in the named or the default profile.

    Times of whole prefills as `prefill_rows` stand for `step_s`, `token_s` and `pair_s`.

    Raises:
        Misfit: a key is unknown or its value cannot be.
    """
    given = dict(values)
    base = given.pop("profile", DEFAULT)
    if not isinstance(base, str) or base not in PROFILES:
        raise Misfit(source, [f"profile: there is no {base!r}, only {', '.join(PROFILES)}"])
    if not given:
        return PROFILES[base]
    rows = given.pop("prefill_rows", None)
    if rows is not None:
        mixed = given.keys() & {"step_s", "token_s", "pair_s"}
        if mixed:
            raise Misfit(source, [f"prefill_rows and {min(mixed)} say the same thing twice"])
        table = understand({"prefill_rows": rows}, _Rows, source)
        try:
            fitted = fit(table.prefill_rows)
        except ConfigError as error:
            raise Misfit(source, [str(error)]) from error
        given |= dict(zip(("step_s", "token_s", "pair_s"), fitted, strict=True))
    known = {name: getattr(PROFILES[base], name) for name in Profile.__struct_fields__}
    unsaid = {"name": f"{base}, changed", "as_of": "not said", "source": source}
    return understand({**known, **unsaid, **given}, Profile, source)


class _Rows(Struct, frozen=True, forbid_unknown_fields=True):
    """Times of whole prefills."""

    prefill_rows: list[Row]
