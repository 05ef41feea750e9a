"""What must never be mixed up, under a real engine: adapters, their names, salts, pictures.

Whether anything is loaded at all is part of each test, so an engine without a cache fails it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.engines import support
from tests.engines.support import Processes, finish

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

CHILD = Path(__file__).with_name("pains_child.py")
NAMES = ("plain", "one", "two", "namesake", "salt")
STRANGERS = ("one", "two", "namesake")


@pytest.fixture
def adapters(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What an engine with adapters said, asked once for all tests."""
    monkeypatch.setattr(support, "CHILD", CHILD)

    def run() -> dict[str, Any]:
        model = processes.model("llama")
        rig = {
            "model": model,
            "extra": {},
            "enable_lora": True,
            "max_lora_rank": 8,
            "max_loras": 3,
        }
        more = {"folder": str(processes.directory / "adapters"), "model": model}
        return finish(processes.start("adapters", rig, more=more))

    return processes.once("adapters", run)


@pytest.mark.pain("W6", "W7", "W8")
@pytest.mark.parametrize("name", NAMES)
def test_w6_w7_w8_nobody_is_served_what_another_computed(
    adapters: dict[str, Any], name: str
) -> None:
    """Adapter, namesake with other weights, salt with an adapter's name: the first time a miss."""
    assert adapters[f"first {name}"]["loaded"] == 0
    assert adapters[f"second {name}"]["loaded"] >= 256
    assert adapters[f"second {name}"]["tokens"] == adapters[f"first {name}"]["tokens"]


@pytest.mark.pain("W6", "W7")
def test_w6_w7_adapters_are_told_apart_by_what_they_answer(adapters: dict[str, Any]) -> None:
    """The control: each adapter answers otherwise, so serving another's KV would have shown."""
    answers = {name: tuple(adapters[f"first {name}"]["tokens"]) for name in NAMES}

    assert answers["salt"] == answers["plain"]
    assert len(set(answers.values())) == len(STRANGERS) + 1


@pytest.mark.pain("W5")
def test_w5_another_picture_is_another_key(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same text around another picture shares the chunks before it and none from there on.

    No vision model is at hand, so this is vLLM's own hashing of such a prompt and our keys of it.
    """
    monkeypatch.setattr(support, "CHILD", CHILD)
    seen = finish(processes.start("images", {}))
    chunks = [[keys[at : at + 32] for at in range(0, len(keys), 32)] for keys in seen["keys"]]

    assert seen["again"] == seen["keys"][1]
    assert {len(keys) for keys in chunks} == {4}
    assert len({keys[0] for keys in chunks}) == 1
    for place in range(1, 4):
        assert len({keys[place] for keys in chunks}) == len(chunks)
