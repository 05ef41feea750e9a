"""Both halves of the vLLM connector over a real store: bytes, failures, ranks, groups. No vLLM."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kvwise.core.layout import GroupKind
from kvwise.engines.vllm.stores import Stores
from kvwise.live.client import Client
from kvwise.live.messages import Ask, Grant, Plan
from tests.engines.toy import BLOCK, Engine, Request, disguise, kinds
from tests.live.support import settings, thread_daemon

PROMPT = list(range(1000, 1083))
"""Twenty whole blocks and some tokens; chunks are four blocks."""

CASES = {
    "layered": (1, ("full",), True),
    "beside": (1, ("full",), False),
    "two ranks": (2, ("full",), True),
    "latent": (2, ("mla",), True),
    "window": (1, ("full", "window"), False),
    "window on two ranks": (2, ("window", "full"), False),
}


@pytest.fixture(autouse=True)
def _without_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests run without vLLM."""
    disguise(monkeypatch)


@contextmanager
def engine(folder: Path, case: str = "layered", *, dram: str = "4MiB") -> Iterator[Engine]:
    """A toy engine with a daemon of its own."""
    ranks, groups, can_layer = CASES[case]
    chunk = 2 * BLOCK if "window" in groups else 4 * BLOCK
    config = settings(folder, dram_size=dram, client_chunk_tokens=chunk)
    with thread_daemon(config):
        clients = [Client(config.socket_path, "toy", timeout_s=5) for _ in range(ranks + 1)]
        toy = Engine(clients, config, groups=groups, can_layer=can_layer)
        try:
            yield toy
        finally:
            toy.scheduler.close()
            for worker in toy.workers:
                worker.close()


@pytest.mark.pain("G4")
@pytest.mark.parametrize("case", ["layered", "two ranks", "window"])
def test_a_cache_smaller_than_the_engines_own_is_said(
    case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether the cache can add anything is known once the engine has its memory, and is said."""
    with engine(tmp_path, case, dram="64MiB") as toy:
        own_bytes = sum(tensor.array.nbytes for memory in toy.memory for tensor in memory.values())
        assert "raise dram.size" not in caplog.text
    assert own_bytes < 64 << 20

    caplog.clear()
    with engine(tmp_path, case, dram=str(own_bytes // 2 // 4096 * 4096)):
        assert "raise dram.size" in caplog.text


def test_an_answer_names_a_pin_that_was_refused(tmp_path: Path) -> None:
    """What is there takes more than a quarter of the memory: the next request cannot keep it."""
    with engine(tmp_path, dram="320KiB") as toy:
        toy.run(request("first"))
        wish = request("second", kv_transfer_params={"kvwise": {"pin_s": 60}})
        toy.run(wish)
        plain = request("third")
        toy.run(plain)
    assert wish.answer is not None
    assert plain.answer is not None
    assert wish.answer["kvwise"]["pin"] == "refused"
    assert "pin" not in plain.answer["kvwise"]


def request(name: str, tokens: list[int] = PROMPT, **more: Any) -> Request:
    """A request."""
    return Request(name, list(tokens), **more)


@pytest.mark.pain("W3", "C8")
@pytest.mark.parametrize("case", CASES)
def test_what_was_stored_is_loaded_on_every_rank(tmp_path: Path, case: str) -> None:
    """The second request loads all whole chunks, and every block has the right bytes."""
    with engine(tmp_path, case) as toy:
        first, second = request("first"), request("second")
        toy.run(first)
        toy.run(second)
        assert first.loads == []
        assert second.loads == [(80, case not in ("layered", "two ranks", "latent"))]
        assert toy.is_right(first)
        assert toy.is_right(second)
        assert not second.failed


@pytest.mark.parametrize("case", CASES)
def test_wrong_bytes_are_noticed_by_the_toy(tmp_path: Path, case: str) -> None:
    """The control: with other bytes in the arena the toy's blocks are wrong."""
    with engine(tmp_path, case) as toy:
        toy.run(request("first"))
        second = request("second")
        spoil(toy)
        toy.run(second)
        assert second.loads
        assert not toy.is_right(second)


@pytest.mark.pain("W4", "C6")
@pytest.mark.parametrize("case", CASES)
def test_a_lost_lease_is_computed_and_nothing_wrong_is_kept(tmp_path: Path, case: str) -> None:
    """Wrong bytes and a lost lease: the request is right in the end, and so is what it stored."""
    longer = [*PROMPT, *range(2000, 2040)]
    with engine(tmp_path, case) as toy:
        toy.run(request("first"))
        second, third = request("second", longer), request("third", longer)
        with lost_leases(toy):
            toy.run(second)
        assert second.failed
        assert toy.is_right(second)
        toy.run(third)
        assert third.loads[0][0] > 80
        assert toy.is_right(third)


@pytest.mark.pain("W11")
def test_without_doubt_wrong_blocks_would_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: if stores were believed after a failed load, the next request would be wrong."""
    longer = [*PROMPT, *range(2000, 2040)]
    monkeypatch.setattr(Stores, "doubt", lambda *_: None)
    with engine(tmp_path) as toy:
        toy.run(request("first"))
        with lost_leases(toy):
            toy.run(request("second", longer))
        third = request("third", longer)
        toy.run(third)
        assert third.loads[0][0] > 80
        assert not toy.is_right(third)


@pytest.mark.pain("H6")
@pytest.mark.parametrize("case", ["layered", "beside"])
def test_a_failed_chunk_is_not_offered_to_the_request_again(tmp_path: Path, case: str) -> None:
    """While leases are lost, a request asks once and then computes: no livelock."""
    with engine(tmp_path, case) as toy:
        toy.run(request("first"))
        second = request("second")
        with lost_leases(toy):
            toy.run(second)
        assert len(second.loads) == 1
        assert second.answer is not None
        assert second.answer["kvwise"]["problem"] == "lease lost during the copy"


@pytest.mark.parametrize("case", ["layered", "beside", "window"])
def test_requests_that_arrive_together_load_once(tmp_path: Path, case: str) -> None:
    """The second waits until the first's load is believed; it is not ordered twice at a time."""
    with engine(tmp_path, case) as toy:
        toy.run(request("first"))
        pair = request("a"), request("b")
        for one in pair:
            toy.scheduler.new_request(one)
        orders = toy.step(pair)
        assert [load.request for load in orders.loads] == ["a"]
        assert pair[1].tables == ()


def test_a_request_that_shares_a_single_block_waits_as_well(tmp_path: Path) -> None:
    """It parts from the other inside a chunk, but vLLM would let it read the first block."""
    with engine(tmp_path) as toy:
        toy.run(request("first"))
        near, far = list(PROMPT), list(PROMPT)
        near[BLOCK], far[0] = 1, 1
        three = request("a"), request("near", near), request("far", far)
        for one in three:
            toy.scheduler.new_request(one)
        toy.step(three)
        assert [bool(one.tables) for one in three] == [True, False, True]


@pytest.mark.pain("W4")
def test_blocks_of_a_failed_load_leave_the_prefix_cache(tmp_path: Path) -> None:
    """A layered load is in vLLM's prefix cache before it is there; if it fails, it is evicted."""
    with engine(tmp_path) as toy:
        toy.run(request("first"))
        second = request("second")
        with lost_leases(toy):
            toy.run(second)
        assert toy.evicted == set(second.tables[0])


def test_layers_that_do_not_wait_make_a_load_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a graph skips the hooks once, the load is not believed; from then on loads are whole."""
    with engine(tmp_path) as toy:
        toy.run(request("first"))
        (worker,) = toy.workers
        monkeypatch.setattr(worker, "wait_layer", lambda _name: None)
        second, third = request("second"), request("third")
        toy.run(second)
        assert second.failed
        assert toy.is_right(second)
        toy.run(third)
        assert not third.failed
        assert toy.is_right(third)


@pytest.mark.pain("W10", "C8", "K3")
def test_a_store_waits_for_all_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk that one rank could not store is in the cache of nobody."""
    with engine(tmp_path, "two ranks") as toy:

        def broken(*_: object) -> None:
            raise OSError("no")

        monkeypatch.setattr(toy.workers[1]._copier, "store", broken)
        toy.run(request("first"))
        second = request("second")
        toy.run(second)
        assert second.loads == []
        assert toy.is_right(second)


def test_latent_kv_is_stored_by_one_rank(tmp_path: Path) -> None:
    """Ranks with identical KV share one part of an object, and only the first writes it."""
    with engine(tmp_path, "latent") as toy:
        layout = toy.workers[0].shape.facts.layout
        assert (layout.ranks, kinds(layout)) == (1, [GroupKind.LATENT])
        assert [worker.shape.stores for worker in toy.workers] == [True, False]
        assert [worker.shape.part for worker in toy.workers] == [0, 0]


@pytest.mark.pain("W6")
def test_salts_and_adapters_are_worlds_apart(tmp_path: Path) -> None:
    """A salt, an adapter and nothing never hit each other, not even with the same letters."""
    adapters = []
    for number, text in enumerate((b"a", b"b", b"a"), start=1):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "adapter_model.safetensors").write_bytes(text)
        adapters.append(lora(number, folder))
    with engine(tmp_path) as toy:
        strangers = [
            request("plain"),
            request("salt", cache_salt="one"),
            request("adapter", lora_request=adapters[0]),
            request("other adapter", lora_request=adapters[1]),
        ]
        for one in strangers:
            toy.run(one)
            assert one.loads == []
        again = request("same content", lora_request=adapters[2])
        toy.run(again)
        assert [tokens for tokens, _ in again.loads] == [80]


def test_an_unreadable_adapter_is_left_alone(tmp_path: Path) -> None:
    """Whose content is unknown is neither stored nor loaded, and the answer says why."""
    with engine(tmp_path) as toy:
        for name in ("first", "second"):
            one = request(name, lora_request=lora(1, tmp_path / "gone"))
            toy.run(one)
            assert one.loads == []
        assert one.answer is not None
        assert "cannot read the weights" in one.answer["kvwise"]["problem"]


def test_a_cache_that_goes_away_is_a_miss(tmp_path: Path) -> None:
    """Without its daemon the engine computes everything, and says nothing was answered."""
    with engine(tmp_path) as toy:
        toy.run(request("first"))
        toy.scheduler._link._cache._mine().link.close()  # type: ignore[attr-defined]
        toy.scheduler._link._cache._path = str(tmp_path / "nobody.sock")  # type: ignore[attr-defined]
        second = request("second")
        toy.run(second)
        assert second.loads == []
        assert toy.is_right(second)
        assert any(name.startswith("unanswered/") for name in toy.scheduler.take_counts())


def test_the_cache_hears_what_the_engine_has_to_compute_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle engine says so; a second request hears of all of the first one, and nothing later."""
    with engine(tmp_path) as toy:
        asks: list[Ask] = []
        ask = toy.scheduler._link.ask

        def listen(said: Ask) -> Plan | None:
            asks.append(said)
            return ask(said)

        monkeypatch.setattr(toy.scheduler._link, "ask", listen)
        others = [list(range(n, n + 50)) for n in (2000, 3000)]
        toy.run(request("first"), *(request(str(n), one) for n, one in enumerate(others)))
        assert [said.backlog_tokens for said in asks] == [0, 83, 133]
        assert asks[1].backlog_pairs == 83 * 83 / 2
        assert asks[0].layers == len(toy.memory[0])


@pytest.mark.parametrize("case", ["layered", "beside"])
@pytest.mark.parametrize("answer", [None, Grant(1, [], b""), Grant(1, [0], bytes(4))])
def test_a_load_that_is_refused_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, answer: Grant | None
) -> None:
    """No pages, or fewer than were promised: the request is right in the end, the engine lives."""
    with engine(tmp_path, case) as toy:
        toy.run(request("first"))
        monkeypatch.setattr(toy.scheduler._link, "want", lambda _lease, _chunks: answer)
        second = request("second")
        toy.run(second)
        assert second.loads
        assert second.failed
        assert toy.is_right(second)


def test_a_reset_ends_sharing(tmp_path: Path) -> None:
    """After a reset nothing stored before is found, not even by requests that arrived before."""
    with engine(tmp_path) as toy:
        toy.run(request("first"))
        early = request("early")
        toy.scheduler.new_request(early)
        assert toy.scheduler.reset(SimpleNamespace())
        toy.step([early])
        late = request("late")
        toy.run(late)
        assert early.loads == late.loads == []


def test_counts_tell_what_was_done(tmp_path: Path) -> None:
    """Tokens and bytes of loads and stores are counted, each with its tier or reason."""
    with engine(tmp_path, "two ranks") as toy:
        toy.run(request("first"))
        toy.run(request("second"))
        counts = toy.scheduler.take_counts()
    assert counts["stored_tokens"] == counts["loaded_tokens/dram"] == 80
    assert counts["stored_bytes"] == counts["loaded_bytes"] == 20 * 2 * 2 * 3000
    assert (counts["decisions/no_match"], counts["decisions/forced"]) == (1, 1)


def lora(number: int, folder: Path) -> Any:
    """An adapter as vLLM names it; all have the same name."""
    return SimpleNamespace(
        lora_int_id=number, lora_path=str(folder), lora_name="one", load_inplace=False
    )


def spoil(toy: Engine) -> None:
    """Flip every bit of the arena."""
    arena = np.frombuffer(toy.workers[0]._cache.pages, dtype=np.uint8)
    np.invert(arena, out=arena)


@contextmanager
def lost_leases(toy: Engine) -> Iterator[None]:
    """Every load copies wrong bytes, and then its lease is gone."""
    kept = []
    for worker in toy.workers:
        copier, cache = worker._copier, worker._cache
        assert copier is not None
        kept.append((copier, cache, copier.load, cache.progress))
        break_loads(copier, cache)
    yield
    for copier, cache, load, progress in kept:
        copier.load = load  # type: ignore[method-assign]
        cache.progress = progress  # type: ignore[method-assign]


def break_loads(copier: Any, cache: Any) -> None:
    """Copy, spoil what was copied, and lose every lease that was looked at."""
    load, progress = copier.load, cache.progress
    seen: set[int] = set()
    lost: set[int] = set()

    def broken_load(plan: Any, fence: Any, on_layer: Any) -> None:
        load(plan, fence, on_layer)
        for address, size in zip(plan.device.tolist(), plan.sizes.tolist(), strict=True):
            spoiled = (ctypes.c_uint8 * size).from_address(address)
            spoiled[0] ^= 255
        lost.update(seen)

    def broken_progress(lease: int) -> tuple[int, bool]:
        seen.add(lease)
        ready, failed = progress(lease)
        return ready, failed or lease in lost

    copier.load, cache.progress = broken_load, broken_progress


def test_a_step_gives_its_tokens_before_it_copies(tmp_path: Path) -> None:
    """On a CPU: what it computed is copied when the next step begins, before that one writes."""
    with engine(tmp_path) as toy:
        (worker,) = toy.workers
        first, again = request("first"), request("again")
        toy.scheduler.new_request(first)
        toy.step([first])
        under_way = [toy.scheduler.has_unfinished]
        assert not any(toy_pages(toy))

        with overwritten_after_begin(worker, toy):
            toy.step([])
        under_way.append(toy.scheduler.has_unfinished)
        toy.run(again)
        assert under_way == [True, False]
        assert again.loads == [(80, False)]
        assert toy.is_right(again)


def test_what_the_engine_waited_for_is_counted(tmp_path: Path) -> None:
    """Copies on the worker's side, answers on the scheduler's; nothing where nothing was done."""
    with engine(tmp_path) as toy:
        toy.step([])
        idle = toy.scheduler.take_counts()
        toy.run(request("first"))
        busy = toy.scheduler.take_counts()

    names = {"held_seconds/copies", "held_seconds/answers"}
    assert names <= busy.keys()
    assert busy["held_seconds/copies"] > idle.get("held_seconds/copies", 0)


def toy_pages(toy: Engine) -> bytes:
    """All bytes of the arena."""
    return bytes(toy.workers[0]._cache.pages)


@contextmanager
def overwritten_after_begin(worker: Any, toy: Engine) -> Iterator[None]:
    """A step that writes to every block that there is."""
    begin = worker.begin

    def begin_and_write(orders: Any) -> None:
        begin(orders)
        for memory in toy.memory:
            for tensor in memory.values():
                tensor.array[:] = 0xEE

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "begin", begin_and_write)
        yield
