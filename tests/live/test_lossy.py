"""Lossy codecs over a whole store: only who asks gets them, and who cannot have them is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvwise.codecs import forms
from kvwise.core.elements import Coding, Elements, Kind
from kvwise.errors import ConfigError
from kvwise.live.blocks import get
from tests.live.support import eventually, prompt
from tests.live.test_codecs import KV, RAW, coding, fill, opened, payloads

needs_numba = pytest.mark.skipif(not forms.at_hand(), reason="Numba is not installed")


@needs_numba
@pytest.mark.parametrize(
    ("asked", "least", "most", "worst"), [("fp8", 0.5, 0.6, 1 / 16), ("nvfp4", 0.28, 0.35, 0.25)]
)
def test_who_asks_gets_fewer_bits(
    tmp_path: Path, asked: str, least: float, most: float, worst: float
) -> None:
    """Who asks for a lossy codec has its objects written with it; who does not keeps its bytes."""
    lossy = Coding(asked)
    space = replace(KV, digest=b"l" * 16, label="lossy", lossy=lossy)
    store = opened(tmp_path, "auto", space=space)
    store.join(KV)
    assert eventually(lambda: asked in store.status()["coding"]["ready"], 60.0)
    fill(store, range(5), space)
    told = coding(store, "lossy")
    tier = store.status()["levels"]["tiers"]["disk"]
    assert (told["coding"], told["why"]) == (asked, "opt_in")
    assert least < tier["used_bytes"] / (tier["objects"] * RAW) < most
    keys = prompt(0, 4, space)
    for was, came in zip(payloads(keys), get(store, space, keys), strict=True):
        before, after = (
            (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
            for data in (was, came)
        )
        assert (before != after).any()
        assert (np.abs(after - before) <= np.abs(before) * worst + 0.4).all()
    fill(store, range(5, 8))
    keys = prompt(5, 4, KV)
    assert get(store, KV, keys) == payloads(keys)
    store.close()

    store = opened(tmp_path, "auto", space=space)
    keys = prompt(1, 4, space)
    assert get(store, space, keys) != payloads(keys)
    store.close()


def test_what_cannot_be_lossy_is_refused(tmp_path: Path) -> None:
    """An engine that keeps FP8 already is told to leave it off, when it joins."""
    store = opened(tmp_path, "off")
    elements = Elements(Kind.E4M3, RAW // 2, 1, RAW // 2)
    with pytest.raises(ConfigError, match=r"hint: .* leave client\.lossy off"):
        store.join(replace(KV, digest=b"e" * 16, elements=elements, lossy=Coding.FP8))
    store.close()
