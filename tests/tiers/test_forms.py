"""Objects in every form on one disk: what comes back, what outlives a restart, what is told."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from kvwise.codecs import forms, frame
from kvwise.codecs.base import scratch
from kvwise.codecs.exponent import Exponent
from kvwise.codecs.forms import Codecs
from kvwise.core.elements import AS_IS, Coding, Elements, Form, Kind
from kvwise.core.timing import Work
from kvwise.errors import FailureKind
from kvwise.testing.tiers import CAPACITY_BYTES, record, scanned, verdicts, want
from kvwise.tiers.base import Buffers, Placed
from kvwise.tiers.disk import DiskTier
from tests.tiers.media import Files

RAW = 256 * 1024
BF16 = Elements(Kind.BF16, 1024, 1, 1024)
FORMS = (AS_IS, Form(Coding.FIXED, BF16), Form(Coding.DENSE, BF16), Form(Coding.DENSE, BF16, True))

pytestmark = pytest.mark.skipif(not forms.at_hand(), reason="Numba is not installed")


@cache
def made() -> Codecs:
    """Codecs that are ready to read."""
    codecs = Codecs()
    codecs.make(Exponent.id)
    return codecs


def ready(folder: Path) -> Files:
    """A disk whose codecs are ready."""
    return Files((folder,), codecs=made())


def kv(number: int) -> Buffers:
    """A payload like KV: a bell curve in BF16, in one piece of memory."""
    drawn = np.random.default_rng(number).standard_normal(RAW // 2, np.float32)
    memory = scratch(RAW)
    memory[:] = (drawn.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    return [memory]


def put(tier: DiskTier, first: int = 0) -> dict[int, Placed]:
    """One object in each form."""
    objects = [(replace(record(n, RAW), form=form), kv(n)) for n, form in enumerate(FORMS, first)]
    answers = tier.put(objects)
    placed = [one for one in answers if isinstance(one, Placed)]
    assert len(placed) == len(FORMS)
    return dict(enumerate(placed, first))


def comes_back(tier: DiskTier, number: int, placed: Placed) -> bool:
    """Whether an object is read as it was written."""
    asked = want(number, RAW, placed)
    return verdicts(tier, [asked]) == [None] and b"".join(asked.buffers) == b"".join(kv(number))


def test_forms_live_side_by_side(tmp_path: Path) -> None:
    """In one call, objects in each form are written in their size and read as they were."""
    tier = ready(tmp_path).open(CAPACITY_BYTES)
    placed = put(tier)
    sizes = [one.stored_bytes for one in placed.values()]
    assert sizes[0] == frame.frame_bytes(RAW)
    assert sizes[0] / sizes[1] > 1.29
    assert sizes[1] > sizes[2]
    assert all(comes_back(tier, number, one) for number, one in placed.items())
    tier.close()


@pytest.mark.parametrize("footers", [True, False])
def test_a_restart_finds_every_form(tmp_path: Path, footers: bool) -> None:
    """A tier that never wrote in a form reads what an earlier one did, closed well or not."""
    files = ready(tmp_path)
    first = files.open(CAPACITY_BYTES)
    placed = put(first)
    first.close()
    if not footers:
        files.cut_footers()
    second = files.open(CAPACITY_BYTES)
    assert sorted(one.stored_bytes for _, one in scanned(second)) == sorted(
        one.stored_bytes for one in placed.values()
    )
    assert all(comes_back(second, number, one) for number, one in placed.items())
    second.close()


@pytest.mark.parametrize("number", [1, 2])
def test_damage_in_any_form_is_a_miss(tmp_path: Path, number: int) -> None:
    """A flipped byte of an encoded payload is seen, and its neighbours are read."""
    files = ready(tmp_path)
    tier = files.open(CAPACITY_BYTES)
    placed = put(tier)
    files.overwrite(placed[number], frame.HEADER_BYTES + 5000, b"\xff\x00\xff")
    found = verdicts(tier, [want(n, RAW, one) for n, one in placed.items()])
    assert found.pop(number) is FailureKind.CORRUPT
    assert found == [None] * (len(FORMS) - 1)
    tier.close()


def test_work_is_told_once(tmp_path: Path) -> None:
    """Bytes moved, encoded and decoded are counted with their times, trials included."""
    tier = ready(tmp_path).open(CAPACITY_BYTES)
    placed = put(tier)
    told = {(one.work, one.coding): one for one in tier.spent()}
    assert told[Work.WRITE, Coding.PLAIN].size_bytes == sum(
        one.stored_bytes for one in placed.values()
    )
    assert told[Work.ENCODE, Coding.FIXED].size_bytes == RAW
    assert told[Work.ENCODE, Coding.DENSE].size_bytes == 2 * RAW
    assert told[Work.DECODE, Coding.DENSE].size_bytes == RAW
    assert all(one.elapsed_ns > 0 for one in told.values())
    assert not tier.spent()
    verdicts(tier, [want(n, RAW, one) for n, one in placed.items()])
    told = {(one.work, one.coding): one for one in tier.spent()}
    assert told[Work.DECODE, Coding.FIXED].size_bytes == RAW
    assert told[Work.DECODE, Coding.DENSE].size_bytes == 2 * RAW
    assert told[Work.READ, Coding.PLAIN].size_bytes == sum(
        one.stored_bytes for one in placed.values()
    )
    tier.close()


def test_noise_stays_as_it_is(tmp_path: Path) -> None:
    """What no codec shrinks is written plain, whatever form it was to have."""
    tier = ready(tmp_path).open(CAPACITY_BYTES)
    noise = scratch(RAW)
    noise[:] = np.random.default_rng(1).integers(0, 256, RAW, np.uint8).tobytes()
    (placed,) = tier.put([(replace(record(1, RAW), form=FORMS[1]), [noise])])
    assert isinstance(placed, Placed)
    assert placed.stored_bytes == frame.frame_bytes(RAW)
    asked = want(1, RAW, placed)
    assert verdicts(tier, [asked]) == [None]
    assert b"".join(asked.buffers) == noise
    tier.close()


def test_a_reader_waits_for_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its codec is ready an object is a miss that loses nothing; neighbours are read."""
    first = ready(tmp_path).open(CAPACITY_BYTES)
    placed = put(first)
    first.close()
    codecs = Codecs()
    second = Files((tmp_path,), codecs=codecs).open(CAPACITY_BYTES)
    assert len(scanned(second)) == len(FORMS)
    assert codecs.missing == (Exponent.id,)
    with monkeypatch.context() as patch:
        patch.setattr(forms, "_warm", lambda *_: pytest.fail("a reader compiled"))
        found = verdicts(second, [want(n, RAW, one) for n, one in placed.items()])
    assert found == [None, *[FailureKind.TIMEOUT] * (len(FORMS) - 1)]
    codecs.make(Exponent.id)
    assert all(comes_back(second, number, one) for number, one in placed.items())
    second.close()


def test_what_nobody_can_read_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One line says how many objects a start without Numba gives up; plain ones stay."""
    first = ready(tmp_path).open(CAPACITY_BYTES)
    put(first)
    first.close()
    monkeypatch.setattr(forms, "find_spec", lambda _: None)
    second = Files((tmp_path,)).open(CAPACITY_BYTES)
    with caplog.at_level(logging.WARNING):
        assert len(scanned(second)) == 1
    (line,) = [record.message for record in caplog.records]
    assert line.startswith(f"disk: gave up {len(FORMS) - 1} objects")
    second.close()
