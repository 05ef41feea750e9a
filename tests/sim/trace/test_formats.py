"""Every format is read to what its sample says. Refusals are tested elsewhere."""

from __future__ import annotations

import gzip
import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from kvwise.errors import TraceError
from kvwise.sim.trace.assembly import Options
from kvwise.sim.trace.read import FORMATS, detect
from kvwise.sim.trace.records import NO_SESSION, Trace
from kvwise.sim.trace.source import Source
from kvwise.units import NS_PER_MS, NS_PER_S
from tests.sim.trace.support import SAMPLE, load, published

S = NS_PER_S


def lengths(trace: Trace) -> list[tuple[int, int]]:
    """Input and output tokens of every request."""
    return [(r.input_tokens, r.output_tokens) for r in trace.requests]


def shared(trace: Trace) -> list[list[int]]:
    """Of each two requests, how many blocks they have in common at their beginning."""
    table = []
    for one in trace.requests:
        row = []
        for other in trace.requests:
            same = [a for a, b in zip(one.blocks, other.blocks, strict=False) if a == b]
            row.append(len(same))
        table.append(row)
    return table


@pytest.mark.parametrize("name", FORMATS)
def test_the_format_is_told_from_the_content(name: str) -> None:
    """The sample of each format is recognised, and its trace is whole."""
    trace = load(SAMPLE[name])

    assert trace.format == name
    assert all(a.arrival_ns <= b.arrival_ns for a, b in pairwise(trace.requests))
    for request in trace.requests:
        chain = [trace.parents[block] for block in request.blocks]
        assert chain[1:] == list(request.blocks[:-1])
        assert all(parent < 0 for parent in chain[:1])


@pytest.mark.parametrize("name", FORMATS)
def test_gzip_is_told_from_the_content(name: str, tmp_path: Path) -> None:
    """Compressed files read the same, whatever they are called."""
    folder = tmp_path / "packed"
    folder.mkdir()
    sample = SAMPLE[name]
    for path in sorted(sample.iterdir()) if sample.is_dir() else [sample]:
        (folder / path.name).write_bytes(gzip.compress(path.read_bytes()))

    assert load(folder) == load(sample)


def test_mooncake_is_sorted_stably() -> None:
    """Requests of one instant keep the order of the file, and parts of blocks keep their ids."""
    trace = load(SAMPLE["mooncake"])

    assert [r.arrival_ns // NS_PER_MS for r in trace.requests] == [0, 3000, 3000, 4500]
    assert lengths(trace) == [(1100, 10), (1536, 20), (512, 5), (1030, 0)]
    assert [r.session for r in trace.requests] == [NO_SESSION, NO_SESSION, 0, 0]
    assert [r.turn for r in trace.requests] == [1, 1, 1, 2]
    assert shared(trace)[0] == [3, 2, 0, 0]
    assert shared(trace)[3] == [0, 0, 1, 2]
    assert trace.block_tokens == 512


def test_the_same_id_after_another_block_is_another_block() -> None:
    """Block 1 stands after block 0 and after block 4: two prefixes, so two blocks."""
    trace = load(SAMPLE["mooncake"])
    first, last = trace.requests[0], trace.requests[3]

    assert first.blocks[1] != last.blocks[1]


def test_delta_grows_prompts_by_answers() -> None:
    """A later turn has all before it in its prompt; answers are private and borders shift."""
    trace = load(SAMPLE["mooncake-delta"])
    by_time = [(r.arrival_ns // NS_PER_MS, r.input_tokens, r.turn) for r in trace.requests]

    assert by_time == [
        (1000, 1024, 1),
        (1500, 1024 + 512 + 600, 2),
        (2000, 1000, 1),
        (10_000, 1000 + 100 + 512, 2),
        (60_000, 1024, 3),
    ]
    assert [len(r.blocks) for r in trace.requests] == [2, 4, 1, 3, 2]
    assert shared(trace)[1] == [2, 4, 1, 1, 2]
    assert shared(trace)[4] == [2, 2, 1, 1, 2]
    assert trace.requests[1].think_ns == 500 * NS_PER_MS
    assert trace.requests[0].think_ns is None


def test_ragpulse_joins_components() -> None:
    """Blocks are cut from the components in their order, and a shorter block at the end is left."""
    trace = load(SAMPLE["ragpulse"])

    assert [r.arrival_ns for r in trace.requests] == [12 * S + S // 2, 40 * S, 60 * S]
    assert [trace.sessions[r.session] for r in trace.requests] == ["a", "b", "a"]
    assert [r.turn for r in trace.requests] == [1, 1, 2]
    assert [len(r.blocks) for r in trace.requests] == [3, 3, 2]
    assert shared(trace) == [[3, 1, 1], [1, 3, 1], [1, 1, 2]]
    assert trace.block_tokens == 16


def test_bailian_follows_parents() -> None:
    """A session is a root and all that goes on with it, also where the root is not in the file."""
    trace = load(SAMPLE["bailian"])

    assert [trace.sessions[r.session] for r in trace.requests] == ["5", "5", "5", "4"]
    assert [r.turn for r in trace.requests] == [1, 2, 3, 2]
    assert [r.arrival_ns for r in trace.requests] == [S // 4, 17 * S // 2, 9 * S, 9 * S]
    assert shared(trace)[1] == [2, 4, 1, 0]


def test_azure_counts_hundreds_of_nanoseconds() -> None:
    """Seven digits are kept, the first arrival is the start, and rows may be out of order."""
    trace = load(SAMPLE["azure"])

    assert lengths(trace) == [(396, 109), (374, 44), (2, 1)]
    assert [r.arrival_ns for r in trace.requests][:2] == [0, 100]
    assert trace.requests[2].arrival_ns == (5 * 3600 + 44 * 60 + 13) * S + S - 680_589_900
    assert trace.parents.tolist() == []


def test_burstgpt_finds_columns_by_name() -> None:
    """Columns may stand anywhere, cells may be quoted, and sessions are taken where there are."""
    trace = load(SAMPLE["burstgpt"])

    assert lengths(trace) == [(472, 18), (1087, 0), (500, 20)]
    assert [r.arrival_ns for r in trace.requests] == [5 * S, 45 * S + S // 4, 46 * S]
    assert [r.session for r in trace.requests] == [0, NO_SESSION, 0]
    assert [r.model for r in trace.requests] == ["GPT-4", "ChatGPT", "GPT-4"]


def test_sharegpt_repeats_what_was_said() -> None:
    """Each answer after something is a request; text that begins the same has the same blocks."""
    trace = load(SAMPLE["sharegpt"])

    assert [trace.sessions[r.session] for r in trace.requests] == ["one", "one", "2", ""]
    assert lengths(trace) == [(21, 1), (37, 3), (18, 1), (21, 1)]
    assert [len(r.blocks) for r in trace.requests] == [1, 2, 1, 1]
    assert shared(trace)[0] == [1, 1, 0, 1]


def test_served_cuts_token_ids() -> None:
    """Token ids are cut into full blocks."""
    trace = load(SAMPLE["served"])

    assert [r.arrival_ns for r in trace.requests] == [100, 300]
    assert shared(trace) == [[2, 1], [1, 1]]


def test_ids_of_one_file_mean_nothing_in_another(tmp_path: Path) -> None:
    """The same file twice is one trace with every block twice."""
    again = tmp_path / "again.jsonl"
    shutil.copy(SAMPLE["mooncake"], again)
    once, twice = load(SAMPLE["mooncake"]), load(SAMPLE["mooncake"], again)

    assert len(twice.requests) == 2 * len(once.requests)
    assert len(twice.parents) == 2 * len(once.parents)
    assert twice.sessions == ("a", "a")


def test_another_block_size_is_taken(tmp_path: Path) -> None:
    """A mooncake file with smaller blocks is read when it is told."""
    path = tmp_path / "small.jsonl"
    path.write_text('{"timestamp":0,"input_length":40,"output_length":1,"hash_ids":[1,2,3]}')

    with pytest.raises(TraceError, match="--block-tokens"):
        load(path)

    assert load(path, options=Options(block_tokens=16)).block_tokens == 16


def test_a_format_can_be_named(tmp_path: Path) -> None:
    """What looks like mooncake is read as what it is said to be, or refused as that."""
    with pytest.raises(TraceError, match="missing required field `chat_id`"):
        load(SAMPLE["mooncake"], options=Options(format="bailian"))


def test_a_wrong_guess_is_told() -> None:
    """An error while reading says that the format was a guess."""
    sample = SAMPLE["ragpulse"] / "0_trace.jsonl"
    with pytest.raises(TraceError, match="no file gives the length") as caught:
        load(sample)

    assert "looks like ragpulse" in caught.value.__notes__[0]


def test_one_trace_has_one_format() -> None:
    """Files of two formats are no trace."""
    with pytest.raises(TraceError, match=r"this is bailian, and \S+ is mooncake"):
        load(SAMPLE["mooncake"], SAMPLE["bailian"])


def test_other_files_of_a_folder_are_left_alone(tmp_path: Path) -> None:
    """A folder is read without its README; one with nothing to read is refused."""
    (tmp_path / "README.md").write_text("# words")
    with pytest.raises(TraceError, match="no file in"):
        load(tmp_path)

    shutil.copy(SAMPLE["azure"], tmp_path / "a.csv")
    assert load(tmp_path).format == "azure"


@pytest.mark.parametrize(
    ("name", "requests", "input_tokens", "output_tokens", "blocks"),
    [
        ("mooncake_conversation_trace.jsonl.gz", 12_031, 144_793_823, 4_122_048, 288_500),
        ("weka", 4_390, 452_044_302, 1_686_848, 7_061_005),
        ("ragpulse", 7_106, 20_917_099, 2_012_676, 1_300_057),
        ("azure_llm_2023_conv.csv.gz", 19_366, 22_361_870, 4_088_665, 0),
    ],
)
def test_published_traces_add_up(
    name: str, requests: int, input_tokens: int, output_tokens: int, blocks: int
) -> None:
    """Published traces have as many requests, tokens and blocks as is known of them."""
    trace = load(published(name))

    assert len(trace.requests) == requests
    assert sum(r.input_tokens for r in trace.requests) == input_tokens
    assert sum(r.output_tokens for r in trace.requests) == output_tokens
    assert sum(len(r.blocks) for r in trace.requests) == blocks


def test_detection_reads_little(tmp_path: Path) -> None:
    """The first line decides, so rubbish after it does no harm to that."""
    path = tmp_path / "t"
    path.write_bytes(SAMPLE["mooncake"].read_bytes() + b"\xff\xff")

    assert detect(Source(path)) == "mooncake"
