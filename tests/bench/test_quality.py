"""The bench of quality: KV goes through a real disk, figures are sums, and controls must hold."""

from __future__ import annotations

import hashlib
import math
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvwise.bench import quality
from kvwise.bench.places import SetupError
from kvwise.codecs.base import scratch
from kvwise.codecs.elements import Elements, Kind
from kvwise.codecs.fp8 import Fp8
from kvwise.codecs.plain import PLAIN
from kvwise.testing.codecs import written_as

ELEMENTS = Elements(Kind.BF16, 6144, 3, 2048)
OBJECT_BYTES = 4 * ELEMENTS.tensor_elements * ELEMENTS.kind.bytes


def answer(nll: float, choices: list[int], generated: list[int]) -> dict[str, Any]:
    """What the model says of one text."""
    return {"nll": nll, "choices": choices, "generated": generated}


COMPUTED = [answer(2.0, [1, 2], [5, 6, 7, 8]), answer(1.0, [3], [5, 5, 5, 5])]
BAD = [answer(9.0, [9, 9], [1, 1, 1, 1]), answer(9.0, [9], [1, 1, 1, 1])]


def test_passages_are_the_same_on_every_machine() -> None:
    """A change of the texts is a change of the measurement, so it is made on purpose."""
    packed = resources.files("kvwise.bench").joinpath("passages.txt").read_bytes()

    assert hashlib.sha256(packed).hexdigest()[:16] == "39f87a8f43f286ff"


def test_kv_goes_through_a_disk(tmp_path: Path) -> None:
    """What comes back is what the codec makes of it, and what it takes is what is on the disk."""
    computed = tmp_path / "computed"
    computed.mkdir()
    chance = np.random.default_rng(1)
    data = written_as(Kind.BF16, chance.standard_normal((8, ELEMENTS.tensor_elements)))
    (computed / "0.kv").write_bytes(data)
    codec, expected = Fp8(ELEMENTS), b""
    for start in range(0, len(data), OBJECT_BYTES):
        back = scratch(OBJECT_BYTES)
        codec.decode(codec.encode([memoryview(data[start : start + OBJECT_BYTES])]), [back])
        expected += bytes(back)
    ratios = [quality.through_disk(one, computed, tmp_path, OBJECT_BYTES) for one in (codec, PLAIN)]

    assert (tmp_path / codec.name / "0.kv").read_bytes() == expected != data
    assert (tmp_path / PLAIN.name / "0.kv").read_bytes() == data
    assert ratios == [48 / 32, 48 / 52]


def test_a_row_says_how_far_answers_moved() -> None:
    """Perplexity is over all tokens, agreement over all places, the first difference a median."""
    moved = [answer(2.5, [1, 4], [5, 6, 0, 8]), answer(1.1, [3], [5, 5, 5, 5])]
    row = quality.row_of("fp8", "head", 1.9, {"": COMPUTED, "way": moved}, "way")

    assert row == {
        "codec": "fp8",
        "scale": "head",
        "ratio": 1.9,
        "perplexity": round(math.exp(1.2), 4),
        "perplexity_ratio": round(math.exp(0.2), 5),
        "next_agreement": 0.6667,
        "agreement": 0.875,
        "first_difference": 3.0,
        "unchanged": 1,
        "texts": 2,
    }


def test_controls_hold() -> None:
    """Both controls are put into words when they hold."""
    judged = {"": COMPUTED, PLAIN.name: COMPUTED, quality.CONTROL: BAD}

    assert len(quality.require_controls(judged)) == 2


@pytest.mark.parametrize(
    ("plain", "bad", "said"),
    [
        ([answer(2.0, [1, 2], [5, 6, 7, 9]), COMPUTED[1]], BAD, "did not do the same"),
        ([answer(2.0000001, [1, 2], [5, 6, 7, 8]), COMPUTED[1]], BAD, "did not do the same"),
        (COMPUTED, COMPUTED, "nothing is measured"),
    ],
)
def test_a_control_that_fails_ends_the_bench(
    plain: list[dict[str, Any]], bad: list[dict[str, Any]], said: str
) -> None:
    """A store that changes KV, or a measure that does not see bad KV, gives no figures at all."""
    judged = {"": COMPUTED, PLAIN.name: plain, quality.CONTROL: bad}
    with pytest.raises(SetupError, match=said):
        quality.require_controls(judged)
