"""The scheduler half's books: keys, rhythm, orders and counts. Small parts, each by itself."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given as given_by
from hypothesis import strategies as st

from kvwise.core.elements import Coding
from kvwise.core.hints import Hints
from kvwise.core.keys import ROOT
from kvwise.core.layout import Group, GroupKind, Layout
from kvwise.engines.copying import SKIP
from kvwise.engines.vllm import namespace as namespace_module
from kvwise.engines.vllm.blocks import chunk_blocks
from kvwise.engines.vllm.counts import Counts
from kvwise.engines.vllm.namespace import namespace_of
from kvwise.engines.vllm.orders import Facts, LoadReport, StepReport, StoreReport
from kvwise.engines.vllm.prompts import PROBLEM_CHARS_MAX, Adapters, Grid, Prompt, prompt_of
from kvwise.engines.vllm.rhythm import WARM_UP, Rhythm
from kvwise.errors import EngineError
from kvwise.units import NS_PER_S

GRID = Grid(b"s" * 16, 4, 8)


def prompt(hashes: list[bytes], **more: Any) -> Prompt:
    """A prompt with these block hashes."""
    given = {"cache_salt": None, "lora_request": None, "kv_transfer_params": None} | more
    return prompt_of(SimpleNamespace(request_id="r", block_hashes=hashes, **given), Adapters())


def test_keys_grow_with_the_request() -> None:
    """Only whole chunks have keys, and those that exist are not made again."""
    hashes = [b"a", b"b", b"c"]
    one = prompt(hashes)
    assert one.grow(GRID) == 1
    first = one.key(0)
    hashes += [b"d", b"e"]
    assert one.grow(GRID) == 2
    assert (one.key(-1), one.key(0)) == (ROOT, first)
    assert one.some_keys(0, 2) == first + one.key(1)
    assert prompt([b"x", b"b"]).grow(GRID) == 1


def test_any_salt_can_be_hashed() -> None:
    """A salt comes from a user and may hold half a character; it must not stop the engine."""
    salts = ["a", "\0", "\ud800", "\udfff", "\U0001f600"]
    keys = {bytes(grown(prompt([b"a", b"b"], cache_salt=salt)).keys) for salt in salts}

    assert len(keys) == len(salts)


def grown(one: Prompt) -> Prompt:
    """A prompt whose keys were made."""
    one.grow(GRID)
    return one


def test_a_token_taken_back_takes_its_keys_along() -> None:
    """When a session drops its last token, the hash of its block changes, and so do the keys."""
    hashes = [b"a", b"b", b"c", b"d"]
    one = prompt(hashes)
    one.grow(GRID)
    before = one.some_keys(0, 2)
    hashes[3] = b"D"
    assert one.grow(GRID) == 2
    assert one.key(0) == before[:16]
    assert one.key(1) != before[16:]
    hashes.pop()
    assert one.grow(GRID) == 1
    assert len(one.keys) == 16


def test_hints_are_read_and_nonsense_is_not() -> None:
    """Only what is plainly said counts."""
    said = prompt([], kv_transfer_params={"kvwise": {"no_store": True}}).hints
    assert (said.no_store, said.no_load) == (True, False)
    nonsense: Any
    for nonsense in ({"kvwise": "no_store"}, {"kvwise": {"no_store": 1}}, {"other": {}}):
        assert not prompt([], kv_transfer_params=nonsense).hints.no_store


def test_hints_are_read_one_by_one() -> None:
    """What can be meant counts, whatever stands beside it; the answer names what cannot."""
    given: dict[str, Any] = {
        "no_reuse": True,
        "pin_s": 120,
        "ttl_s": -1,
        "priority": "high",
        "pause": "tool",
        "no_store": 1,
        "pin": 5,
    }
    one = prompt([], kv_transfer_params={"kvwise": given})
    assert one.hints == Hints(no_reuse=True, pin_s=120.0, priority=1.0, pause="tool")
    problem = str(one.outcome["problem"])
    assert "ttl_s = -1 is ignored: write seconds, from 0 to 604800" in problem
    assert "no_store = 1 is ignored: write true or false" in problem
    assert "there is no hint 'pin'" in problem


@given_by(
    st.dictionaries(
        st.sampled_from(["no_store", "no_load", "no_reuse", "pin_s", "ttl_s", "priority", "pause"]),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.none()),
    )
)
def test_no_hint_stops_a_request(given: dict[str, Any]) -> None:
    """Whatever callers send, the request is served with hints that can be meant."""
    one = prompt([], kv_transfer_params={"kvwise": given})
    assert one.hints.is_sane
    assert len(str(one.outcome.get("problem", ""))) <= PROBLEM_CHARS_MAX


@pytest.mark.pain("W7")
def test_an_adapter_keeps_its_digest_while_it_is_loaded(tmp_path: Path) -> None:
    """VLLM keeps the weights when their file changes, unless it is told to load them anew."""
    (tmp_path / "adapter_model.bin").write_bytes(b"one")
    adapters = Adapters()
    lora = SimpleNamespace(lora_int_id=1, lora_path=str(tmp_path), load_inplace=False)
    first = adapters.digest(lora)
    (tmp_path / "adapter_model.bin").write_bytes(b"two")
    assert adapters.digest(lora) == first
    lora.load_inplace = True
    assert adapters.digest(lora) != first


def test_chunks_know_their_blocks() -> None:
    """Group after group; what is not kept, not there or not wanted is skipped."""
    tables = [[1, 2, 3, 4, 5], [0, 0, 6, 7]]
    assert chunk_blocks(tables, GRID, range(1, 3)).tolist() == [
        [3, 4, 6, 7],
        [5, SKIP, SKIP, SKIP],
    ]
    some = chunk_blocks(tables, GRID, range(2), only=range(1, 3))
    assert some.tolist() == [[SKIP, 2, SKIP, SKIP], [3, SKIP, 6, SKIP]]
    assert some.dtype == np.int64


@pytest.mark.pain("H3", "K3")
def test_reports_of_ranks_are_merged() -> None:
    """The worst rank counts for what is good, all count for bytes, the slowest for time."""
    one = StepReport(3, {1: LoadReport(1, 5, 10, 100, 1000, "")}, {9: StoreReport(1, 4, 7)}, 50)
    two = StepReport(
        3,
        {1: LoadReport(1, 2, 20, 50, 3000, "deadline"), 2: LoadReport(1, 1, 1, 1, 1, "")},
        {9: StoreReport(1, 3, 8), 8: StoreReport(1, 1, 1)},
        70,
    )
    merged = one.aggregate(two)
    assert merged.loads[1] == LoadReport(2, 2, 30, 100, 3000, "deadline")
    assert merged.loads[2].ranks == 1
    assert merged.stores == {9: StoreReport(2, 3, 15), 8: StoreReport(1, 1, 1)}
    assert merged.blocked_ns == 70


def rhythm() -> Rhythm:
    """A rhythm that is warm."""
    made = Rhythm(b"s" * 16)
    for number in range(WARM_UP):
        made.begin(number, 0, [(10, 0)], clean=True)
        assert made.end(number, 1, 0) is None
    return made


def test_steps_are_timed_one_after_the_other() -> None:
    """A step lasts from when it was ordered, or from the end of the one before it."""
    beats = rhythm()
    beats.begin(10, 1 * NS_PER_S, [(100, 0), (1, 50)], clean=True)
    beats.begin(11, 2 * NS_PER_S, [(20, 100)], clean=True)
    first = beats.end(10, 4 * NS_PER_S, NS_PER_S // 2)
    second = beats.end(11, 6 * NS_PER_S, 0)
    assert first is not None
    assert second is not None
    assert (first.tokens, first.pairs, first.seconds) == (101, 100 * 50 + 50.5, 2.5)
    assert (second.tokens, second.seconds) == (20, 2.0)


@pytest.mark.parametrize(
    ("work", "clean", "blocked_ns"),
    [
        ([(10, 0)], False, 0),
        ([(1, 50), (1, 60)], True, 0),
        ([(10, 0)], True, 2 * NS_PER_S),
        ([], True, 0),
    ],
)
def test_steps_that_say_nothing_are_left_out(
    work: list[tuple[int, int]], clean: bool, blocked_ns: int
) -> None:
    """Steps that waited for loads, that only decode, or whose time was all ours."""
    beats = rhythm()
    beats.begin(10, 0, work, clean=clean)
    assert beats.end(10, NS_PER_S, blocked_ns) is None


def test_forgotten_steps_do_not_pile_up() -> None:
    """A step whose results never come, or come twice, is no sample."""
    beats = rhythm()
    for number in range(1000):
        beats.begin(number, number, [(10, 0)], clean=True)
    assert len(beats._beats) <= 64
    assert beats.end(5, NS_PER_S, 0) is None
    assert beats.end(999, NS_PER_S, 0) is not None
    assert beats.end(999, NS_PER_S, 0) is None


@pytest.mark.pain("C11")
def test_counters_only_go_up() -> None:
    """What is not positive is not counted, and taking empties the bag."""
    counts = Counts()
    counts.add("a", 2, "x")
    counts.add("a", -5, "x")
    counts.add("b", 0)
    assert counts.take() == {"a/x": 2}
    assert counts.take() == {}


LAYOUT = Layout(4, 8, (Group(GroupKind.FULL, (64,)),))


def engine(**changes: Any) -> Any:
    """What the namespace reads of vLLM's configuration."""
    model = {
        "model": "/models/tiny",
        "hf_config": SimpleNamespace(to_dict=lambda: {"layers": 2, "rope_scaling": None}),
        "quantization": None,
        "dtype": "torch.bfloat16",
        "max_model_len": 100,
    }
    cache = {"cache_dtype": "auto", "prefix_caching_hash_algo": "sha256"}
    return SimpleNamespace(
        model_config=SimpleNamespace(**(model | {k: changes[k] for k in model if k in changes})),
        cache_config=SimpleNamespace(**(cache | {k: changes[k] for k in cache if k in changes})),
        parallel_config=SimpleNamespace(tensor_parallel_size=changes.get("ranks", 1)),
        load_config=SimpleNamespace(load_format=changes.get("load_format", "dummy")),
    )


def rope(kind: str) -> Any:
    """Settings with a rotary embedding of this kind."""
    return SimpleNamespace(to_dict=lambda: {"layers": 2, "rope_scaling": {"type": kind}})


@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": "torch.float16"},
        {"quantization": "fp8"},
        {"cache_dtype": "fp8"},
        {"prefix_caching_hash_algo": "sha256_cbor"},
        {"ranks": 2},
        {"hf_config": SimpleNamespace(to_dict=lambda: {"layers": 3, "rope_scaling": None})},
    ],
)
def test_whatever_changes_kv_changes_the_namespace(changes: dict[str, Any]) -> None:
    """Each fact has a field, so no two engines that differ can meet."""
    facts = Facts(LAYOUT, "kernel")
    assert namespace_of(engine(), facts).digest != namespace_of(engine(**changes), facts).digest


def test_lossy_blocks_are_found_by_nobody_else() -> None:
    """Each lossy codec has keys of its own, and without one they are what they always were."""
    facts = Facts(LAYOUT, "kernel")
    plain = namespace_of(engine(), facts)
    digests = {namespace_of(engine(), facts, lossy=codec).digest for codec in ("fp8", "nvfp4")}
    assert len({plain.digest, *digests}) == 3
    assert namespace_of(engine(), facts, lossy="off") == plain
    assert namespace_of(engine(), facts, lossy="fp8").lossy is Coding.FP8


def test_facts_of_the_ranks_are_part_of_it() -> None:
    """Another kernel, another shape of objects, or another generation is another namespace."""
    facts = Facts(LAYOUT, "kernel")
    digests = {
        namespace_of(engine(), facts).digest,
        namespace_of(engine(), Facts(LAYOUT, "other kernel")).digest,
        namespace_of(
            engine(), Facts(Layout(4, 4, (Group(GroupKind.FULL, (64,)),)), "kernel")
        ).digest,
        namespace_of(engine(), facts, generation="1").digest,
    }
    assert len(digests) == 4


def test_where_a_model_lies_is_no_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Path and longest sequence only count where they change something."""
    facts = Facts(LAYOUT, "kernel")
    same = namespace_of(engine(model="/elsewhere/tiny", max_model_len=200), facts)
    assert same.digest == namespace_of(engine(), facts).digest
    short = namespace_of(engine(hf_config=rope("longrope")), facts).digest
    longer = namespace_of(engine(hf_config=rope("longrope"), max_model_len=200), facts).digest
    assert short != longer
    monkeypatch.setattr(namespace_module, "weights_digest", lambda _path: "w")
    with pytest.raises(EngineError, match="cannot be identified"):
        namespace_of(engine(load_format="auto", model="nobody/knows"), facts)


def test_a_pair_is_priced_from_the_model() -> None:
    """Of a 70B model's configuration; one that does not say enough, or slides, gets no guess."""
    said = {
        "num_hidden_layers": 80,
        "hidden_size": 8192,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "intermediate_size": 28672,
    }
    told = engine(hf_config=SimpleNamespace(to_dict=lambda: said))
    slides = Layout(16, 16, (Group(GroupKind.WINDOW, (64,), 32),))
    assert namespace_of(told, Facts(LAYOUT, "")).pair_tokens == pytest.approx(1.9e-5, rel=0.05)
    assert namespace_of(told, Facts(slides, "")).pair_tokens == 0.0
    assert namespace_of(engine(), Facts(LAYOUT, "")).pair_tokens == 0.0
