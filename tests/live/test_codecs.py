"""Codecs over a whole store: what engines and operators say, what comes back, what is told."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvwise.codecs import forms
from kvwise.codecs.forms import Codecs
from kvwise.core.coding import TRIAL_EVERY
from kvwise.core.elements import Coding, Elements, Kind
from kvwise.core.layout import Group, GroupKind, Layout
from kvwise.core.words import Namespace
from kvwise.errors import ConfigError
from kvwise.live.blocks import get, put
from kvwise.live.events import replay
from kvwise.live.node import Node
from kvwise.live.session import Session
from kvwise.live.stats import SnapshotCollector
from kvwise.live.store import Store
from tests.live.support import CHUNK, eventually, prompt, settings

RAW = 128 * 1024
LAYOUT = Layout(CHUNK, CHUNK, (Group(GroupKind.FULL, (RAW // 2, RAW // 2)),))
BF16 = Elements(Kind.BF16, RAW // 4, 1, RAW // 4)
KV = Namespace(b"k" * 16, "kv", LAYOUT, 1e-3, elements=BF16)

needs_numba = pytest.mark.skipif(not forms.at_hand(), reason="Numba is not installed")


def payloads(keys: bytes) -> list[bytes]:
    """Numbers like KV for each key, its own."""
    return [
        (
            np.random.default_rng(int.from_bytes(keys[at : at + 8])).standard_normal(
                RAW // 2, np.float32
            ).view(np.uint32) >> 16
        ).astype(np.uint16).tobytes()
        for at in range(0, len(keys), 16)
    ]  # fmt: skip


def opened(folder: Path, codec: str, *, space: Namespace = KV, **more: object) -> Store:
    """A store whose arena holds eight objects, with a namespace joined."""
    config = settings(folder, disk=True, dram_size=8 * RAW, disk_codec=codec, **more)
    store = Store.open(config)
    store.join(space)
    if codec != "off" and space.elements is not None and forms.at_hand():
        assert eventually(lambda: bool(store.status()["coding"]["ready"]), 60.0)
    return store


def coding(store: Store, label: str = "kv") -> dict[str, Any]:
    """What the store says of a namespace's objects on disk."""
    told: dict[str, Any] = store.status()["coding"]["choices"]["disk"][label]
    return told


def fill(store: Store, prompts: range, space: Namespace = KV) -> None:
    """Store prompts of four objects each, all of them on disk at the end."""
    for seed in prompts:
        keys = prompt(seed, 4, space)
        assert put(store, space, keys, payloads(keys)) == 4
        assert store.flush(30.0)


@needs_numba
@pytest.mark.parametrize("codec", ["fixed", "dense"])
def test_what_was_encoded_comes_back(tmp_path: Path, codec: str) -> None:
    """Objects take less room on disk and come back byte for byte, after a restart too."""
    store = opened(tmp_path, codec)
    fill(store, range(5))
    tier = store.status()["levels"]["tiers"]["disk"]
    assert tier["used_bytes"] < 0.85 * tier["objects"] * RAW
    assert (coding(store)["coding"], coding(store)["why"]) == (codec, "forced")
    keys = prompt(0, 4, KV)
    assert get(store, KV, keys) == payloads(keys)
    store.close()

    store = opened(tmp_path, "off")
    fill(store, range(5, 7))
    for seed in (1, 6):
        keys = prompt(seed, 4, KV)
        assert get(store, KV, keys) == payloads(keys)
    store.check()
    store.close()


@needs_numba
def test_a_start_waits_for_codecs_that_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loading them takes a while; the first prompt asked for comes from disk all the same."""
    store = opened(tmp_path, "fixed")
    fill(store, range(1))
    store.close()
    make = Codecs.make

    def slowly(codecs: Codecs, number: int) -> None:
        time.sleep(0.3)
        make(codecs, number)

    monkeypatch.setattr(Codecs, "make", slowly)
    store = Store.open(settings(tmp_path, disk=True, dram_size=8 * RAW, disk_codec="fixed"))
    store.join(KV)
    keys = prompt(0, 4, KV)
    assert get(store, KV, keys) == payloads(keys)
    assert store.status()["counters"]["failures"] == {}
    store.close()


@needs_numba
def test_auto_measures_and_decides(tmp_path: Path) -> None:
    """After a few objects and a read there are rates, shares and a reason; and it replays."""
    log = tmp_path / "events.kvlog"
    store = opened(tmp_path, "auto", serve_event_log=str(log))
    fill(store, range(12))
    for seed in range(6):
        keys = prompt(seed, 4, KV)
        assert get(store, KV, keys) == payloads(keys)
    fill(store, range(100, 104))
    told = store.status()["coding"]
    assert told["choices"]["disk"]["kv"]["why"] in ("link_slow", "link_fast")
    assert set(told["decode_bytes_per_s"]) == {"fixed", "dense"}
    assert 0.5 < told["choices"]["disk"]["kv"]["shares"]["dense"] < 0.9
    assert told["read_bytes_per_s"]["disk"] > 0
    store.close()
    verdict, brain = replay(log)
    assert verdict.divergence == ""
    assert brain.snapshot()["coding"]["choices"] == told["choices"]


@pytest.mark.parametrize(
    ("space", "codec", "why"),
    [
        (replace(KV, elements=None), "auto", "no_elements"),
        (KV, "off", "off"),
    ],
)
def test_what_is_not_to_be_encoded_is_not(
    tmp_path: Path, space: Namespace, codec: str, why: str
) -> None:
    """Objects of unknown content stay as they are, and all do where codecs are off."""
    store = opened(tmp_path, codec, space=space)
    fill(store, range(3), space)
    assert (coding(store)["coding"], coding(store)["why"]) == ("plain", why)
    assert store.status()["coding"]["encode_bytes_per_s"] == {}
    store.close()


def test_without_numba_codecs_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One line names what to install, and the reason is seen in the status and in metrics."""
    monkeypatch.setattr(forms, "find_spec", lambda _: None)
    with caplog.at_level(logging.WARNING):
        config = settings(tmp_path, disk=True, dram_size=8 * RAW, disk_codec="auto")
        node = Node(config)
    assert [r.message for r in caplog.records if "kvwise[codecs]" in r.message] != []
    store = Store(node, Session(node, "engine"))
    store.join(KV)
    fill(store, range(2))
    assert (coding(store)["coding"], coding(store)["why"]) == ("plain", "no_numba")
    labels = {"tier": "disk", "namespace": "kv", "codec": "plain", "why": "no_numba"}
    (used,) = [m for m in SnapshotCollector(node.status).collect() if m.name == "kvwise_codec_used"]
    assert [sample.labels for sample in used.samples] == [labels]
    store.close()


@needs_numba
def test_exploring_is_rare(tmp_path: Path) -> None:
    """Where a codec is forced nothing is tried; else a few objects at first, then one in many."""
    store = opened(tmp_path, "auto")
    fill(store, range(TRIAL_EVERY // 4))
    encoded = store.status()["coding"]
    assert set(encoded["encode_bytes_per_s"]) == {"fixed", "dense"}
    assert coding(store)["why"] == "unmeasured"  # nothing was read yet
    assert coding(store)["coding"] == "plain"
    tier = store.status()["levels"]["tiers"]["disk"]
    assert tier["used_bytes"] > 0.9 * tier["objects"] * RAW
    store.close()


@pytest.mark.parametrize(
    ("elements", "lossy"),
    [
        (Elements(Kind.BF16, 0, 1, 1), Coding.PLAIN),
        (Elements(Kind.BF16, 64, 3, 8), Coding.PLAIN),
        (Elements(Kind.BF16, 1 << 40, 1, 1), Coding.PLAIN),
        (Elements(Kind.BF16, 64, -2, -8), Coding.PLAIN),
        (BF16, Coding.DENSE),
    ],
    ids=["empty", "odd", "huge", "negative", "lossless"],
)
def test_a_geometry_that_cannot_be_is_refused(
    tmp_path: Path, elements: Elements, lossy: Coding
) -> None:
    """Elements that are no shape, and a lossy codec that is none, are errors of the engine."""
    store = Store.open(settings(tmp_path))
    with pytest.raises(ConfigError, match="elements"):
        store.join(replace(KV, elements=elements, lossy=lossy))
    store.close()


def test_one_name_has_one_meaning(tmp_path: Path) -> None:
    """Other elements, or another lossy codec, under a name that is taken are refused."""
    store = opened(tmp_path, "off")
    store.join(KV)
    for other in (replace(KV, elements=None), replace(KV, lossy=Coding.FP8)):
        with pytest.raises(ConfigError, match="other elements or another lossy codec; hint"):
            store.join(other)
    store.close()


@needs_numba
def test_codecs_that_fail_are_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever a broken Numba raises becomes one line; coded objects are misses, no others are."""
    store = opened(tmp_path, "fixed")
    fill(store, range(4))
    store.close()

    def broken(*_: object) -> None:
        raise AttributeError("planted")

    monkeypatch.setattr(forms, "_warm", broken)
    with caplog.at_level(logging.WARNING):
        store = Store.open(settings(tmp_path, disk=True, dram_size=8 * RAW, disk_codec="fixed"))
        store.join(KV)
        assert eventually(lambda: any("planted" in one.message for one in caplog.records), 60.0)
        fill(store, range(10, 14))
        assert coding(store)["why"] == "no_numba"
        assert get(store, KV, prompt(0, 4, KV)) == []
    keys = prompt(10, 4, KV)
    assert get(store, KV, keys) == payloads(keys)
    assert not [one for one in caplog.records if one.exc_info]
    assert len([one for one in caplog.records if "planted" in one.message]) == 1
    store.check()
    store.close()
