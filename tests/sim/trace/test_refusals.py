"""What is no trace is refused with its place, within bounds, whatever it holds. Nothing is read."""

from __future__ import annotations

import codecs
import gzip
import json
import os
import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvwise.errors import TraceError
from kvwise.sim.trace import assembly, source
from kvwise.sim.trace.assembly import Options
from tests.sim.trace.support import SAMPLE, load

MIB = 1 << 20
ROW: dict[str, Any] = {"timestamp": 1, "input_length": 3, "output_length": 1, "hash_ids": [1]}
GOOD = json.dumps(ROW)


def refused(path: Path, options: Options | None = None) -> str:
    """The message with which a file is refused."""
    with pytest.raises(TraceError) as caught:
        load(path, options=options or Options())
    return str(caught.value)


def written(tmp_path: Path, content: str | bytes) -> Path:
    """A file."""
    path = tmp_path / "t.jsonl"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("timestamp", "early"),
        ("timestamp", -1),
        ("timestamp", 1e300),
        ("input_length", 3.5),
        ("input_length", True),
        ("input_length", 1 << 60),
        ("output_length", -1),
        ("output_length", None),
        ("hash_ids[1]", [1, "two"]),
        ("hash_ids[0]", [1.5]),
        ("session_id", []),
    ],
)
def test_a_bad_field_is_named(field: str, value: object, tmp_path: Path) -> None:
    """File, line and field are in the message."""
    row = ROW | {field.partition("[")[0]: value}
    path = written(tmp_path, f"{GOOD}\n\n{json.dumps(row)}\n{GOOD}\n")

    assert refused(path).startswith(f"{path}:3: field {field}: ")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (GOOD.replace("3", "NaN"), "invalid character"),
        (GOOD.replace("[1]", "[" + "9" * 5000 + "]"), "field hash_ids[0]: Integer value out of"),
        (GOOD.replace("}", ', "x": ' + "[" * 100_000 + "]" * 100_000 + "}"), "nested too deeply"),
        (GOOD.replace("}", ', "session_id": "\\ud800"}'), "half a character: \\ud800 needs"),
        (GOOD.replace("}", ', "session_id": "\\ud800\\n"}'), "half a character: \\ud800 needs"),
        (GOOD.replace("}", ', "session_id": "\\ud800'), "truncated"),
        (GOOD.encode().replace(b"}", b', "session_id": "\xff"}'), "Invalid UTF-8"),
        (b"\xff\xfe\x00", "malformed"),
        ("[1, 2]", "Expected `object`, got `array`"),
        ("{}", "missing required field `timestamp`"),
        (GOOD[:-1], "truncated"),
        (f"{GOOD} {GOOD}", "trailing characters"),
    ],
)
def test_a_bad_line_is_named(line: str | bytes, said: str, tmp_path: Path) -> None:
    """Lines that are no JSON, or other JSON, or hostile, are refused by their number."""
    text = line.encode() if isinstance(line, str) else line
    path = written(tmp_path, GOOD.encode() + b"\n" + text)
    message = refused(path)

    assert message.startswith(f"{path}:2: ")
    assert said in message


@pytest.mark.parametrize("more", ["", f"\n{GOOD}\n", "\n\n" + GOOD])
@pytest.mark.parametrize(
    ("line", "said"),
    [
        (GOOD.replace("3", "NaN"), "invalid character"),
        (GOOD.replace("}", ', "session_id": "\\ud800"}'), "half a character: \\ud800 needs"),
        (GOOD[:-1], "truncated"),
        (GOOD[:-3], "truncated"),
        (f"{GOOD} {GOOD}", "trailing characters"),
    ],
)
def test_a_bad_first_line_is_named(line: str, said: str, more: str, tmp_path: Path) -> None:
    """A first line that tells no format is the one that is damaged, whatever comes after it."""
    path = written(tmp_path, line + more)
    message = refused(path)

    assert message.startswith(f"{path}:1: ")
    assert said in message


def test_a_bad_line_of_a_document_is_named(tmp_path: Path) -> None:
    """A document over many lines is refused by the line at which it stops being JSON."""
    text = json.dumps(json.loads(SAMPLE["weka"].read_text()), indent=1)
    path = written(tmp_path, text)
    assert load(path).requests == load(SAMPLE["weka"]).requests
    line = text[: text.index('"in"')].count("\n") + 1
    written(tmp_path, text.replace('"in":', '"in"', 1))

    assert refused(path).startswith(f"{path}:{line}: JSON is malformed")


@pytest.mark.parametrize("ids", [[], [1, 2], [1, 2, 3, 4, 5]])
def test_blocks_must_make_the_length(ids: list[int], tmp_path: Path) -> None:
    """As many ids as full blocks, or one more, and nothing else."""
    path = written(tmp_path, json.dumps(ROW | {"input_length": 2000, "hash_ids": ids}))
    message = refused(path)

    assert f"{len(ids)} blocks do not make 2000 tokens at 512 a block" in message
    assert "hint: --block-tokens" in message


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("mooncake-delta", "[13, 14]", "[13]", ":3: field hash_ids: 1 blocks do not make 600"),
        ("mooncake-delta", '"timestamp": 2000.0, ', "", ":2: field timestamp: session 's2' begins"),
        ("weka", '"type": "s"', '"type": "z"', ": field requests[2].type: Invalid value 'z'"),
        ("weka", '"in": 192', '"in": "192"', ": field requests[1].requests[1].in: Expected"),
        ("weka", "[1, 2, 3, 5]", "[1, 2]", ": field hash_ids: 2 blocks do not make 260 tokens"),
        ("weka", '"block_size": 64', '"block_size": 0', ": field block_size: Expected"),
        ("weka", '"local"', '"near"', ": field hash_id_scope: Invalid enum value 'near'"),
        ("bailian", '"turn": 2', '"turn": -2', ":2: field turn: Expected `int` >= 0"),
        ("bailian", "8.5", '"8.5"', ":2: field timestamp: Expected `float`, got `str`"),
        ("azure", "374,44", "374,x", ":2: field GeneratedTokens: 'x' is not a number of tokens"),
        ("azure", "374,44", "374", ":2: 2 fields under 3 columns"),
        ("azure", "11-16 18", "11-31 18", ":2: field TIMESTAMP: '2023-11-31 18:15:46.6805900'"),
        ("azure", "374", "99999999", ":2: 99999999 tokens are more than 16777216"),
        ("burstgpt", "45.25", "nan", ":3: field Timestamp: 'nan' is not a time in seconds"),
        ("burstgpt", "1087.0", "1087.5", ":3: field Request tokens: '1087.5' is not a number"),
        ("burstgpt", '"API log', 'x"API log', ":3: 9 fields under 8 columns"),
        ("served", '"input_toks": 17', '"input_toks": 18', ":2: field input_tok_ids: 17 ids, not"),
        ("sharegpt", '"value": "YES"', '"value": 5', ": field [1].conversations[3].value: Exp"),
    ],
)  # fmt: skip
def test_each_format_is_held(name: str, old: str, new: str, said: str, tmp_path: Path) -> None:
    """A sample with one thing changed is refused for that."""
    text = SAMPLE[name].read_text()
    assert old in text
    path = written(tmp_path, text.replace(old, new, 1))

    assert refused(path, Options(format=name)).startswith(f"{path}{said}")


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("0_trace", '"12.5"', '"1e3"', ":2: field timestamp: Expected `str` matching regex"),
        ("0_trace", "[7, 9]", "[7, 10]", ":2: field hash_ids.passages_ids: no file gives the"),
        ("2_passages", "8,", "7,", ":2: passages_ids 7 has a length already"),
        ("2_passages", "20}", "0}", ":2: field token_length: Expected `int` >= 1"),
        ("3_history", "history_id", "story_id", ":1: not the id of one component"),
    ],
)  # fmt: skip
def test_components_are_held(file: str, old: str, new: str, said: str, tmp_path: Path) -> None:
    """A folder of components with one thing changed is refused for that."""
    for path in SAMPLE["ragpulse"].iterdir():
        text = path.read_text()
        changed = text.replace(old, new, 1) if path.stem == file else text
        (tmp_path / path.name).write_text(changed)
    bad = tmp_path / f"{file}.jsonl"

    assert refused(tmp_path).startswith(f"{bad}{said}")


def test_components_cannot_make_an_endless_prompt(tmp_path: Path) -> None:
    """A short line that names long components often is refused before it is cut into blocks."""
    for path in SAMPLE["ragpulse"].iterdir():
        text = path.read_text().replace("[7, 9]", str([7] * 1_000))
        (tmp_path / path.name).write_text(text.replace("10}", "1048576}"))

    assert "0_trace.jsonl:2: 16777232 tokens are more than 16777216" in refused(tmp_path)


def test_block_sizes_must_agree(tmp_path: Path) -> None:
    """Two sessions with other blocks are two traces."""
    (tmp_path / "a.json").write_text(SAMPLE["weka"].read_text())
    (tmp_path / "b.json").write_text(
        '{"id": "b", "block_size": 32, "hash_id_scope": "local", "requests": []}'
    )

    assert "b.json: its blocks have 32 tokens, those of the files before 64" in refused(tmp_path)


@pytest.mark.parametrize("content", ["", "\n\n", "{}", "hello\nworld", "1,2,3", '{"a": 1}', "\0"])
def test_what_is_nothing_known_is_refused(content: str, tmp_path: Path) -> None:
    """Empty files and other files are refused, and the formats are named."""
    message = refused(written(tmp_path, content))

    assert "hint: formats are mooncake, " in message


def test_a_trace_without_requests_is_refused() -> None:
    """Lengths of components alone are no trace."""
    assert "no requests" in refused(SAMPLE["ragpulse"] / "2_passages.jsonl")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """What cannot be opened is named with the reason."""
    path = tmp_path / "none"

    assert refused(path) == f"cannot read {path}: No such file or directory"


def test_emptiness_without_end_is_refused(tmp_path: Path) -> None:
    """A small packed file may hold lines and lines of nothing."""
    path = tmp_path / "bomb.jsonl.gz"
    path.write_bytes(gzip.compress(b"\n" * 1_100_000))

    assert refused(path) == f"{path}:1000001: more than 1,000,000 lines are empty"


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    """Nobody knows its format before it is read, and then it is gone."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = os.open(path, os.O_RDWR)
    try:
        assert "a pipe cannot be read twice; hint: write it to a file first" in refused(path)
    finally:
        os.close(writer)
    assert "a pipe cannot be read twice" in refused(path)


def test_a_mark_of_byte_order_is_no_content(tmp_path: Path) -> None:
    """Some editors begin every file with one."""
    path = tmp_path / "t.jsonl"
    path.write_bytes(codecs.BOM_UTF8 + SAMPLE["mooncake"].read_bytes())

    assert load(path).requests == load(SAMPLE["mooncake"]).requests


@pytest.mark.parametrize("damage", ["cut", "flip", "rubbish"])
def test_damaged_gzip_is_refused(damage: str, tmp_path: Path) -> None:
    """Compressed data that ends early or was changed is damage, not a short trace."""
    data = bytearray(gzip.compress(SAMPLE["mooncake"].read_bytes() * 50))
    if damage == "cut":
        del data[-20:]
    elif damage == "flip":
        data[-6] ^= 1
    else:
        data[10:] = bytes(100)
    path = written(tmp_path, bytes(data))

    assert refused(path).startswith(f"{path}: the compressed data is damaged: ")


def test_a_line_without_end_takes_bounded_memory(tmp_path: Path) -> None:
    """A small file that unpacks to one endless line is refused before it is held."""
    path = tmp_path / "bomb.jsonl.gz"
    with gzip.open(path, "wb", compresslevel=1) as stream:
        stream.write(f"{GOOD}\n".encode())
        for _ in range(128):
            stream.write(b" " * MIB)
    tracemalloc.start()
    message = refused(path, Options(format="mooncake"))
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert message == f"{path}:2: the line is longer than 16 MiB"
    assert peak_bytes < 64 * MIB


def test_a_document_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is one document is refused where it is longer than allowed."""
    monkeypatch.setattr(source, "DOCUMENT_BYTES_MAX", 2 * MIB)
    path = written(tmp_path, "[" + " " * (3 * MIB))

    assert refused(path) == f"{path}: the file holds more than 2 MiB; hint: split it"


def test_times_beyond_reason_are_refused(tmp_path: Path) -> None:
    """Delays that add up to more than a century are not a time."""
    first = {"session_id": 1, "timestamp": 1, "input_length": 0, "output_length": 0, "hash_ids": []}
    later = {key: value for key, value in first.items() if key != "timestamp"} | {"delay": 3e12}
    path = written(tmp_path, "\n".join(json.dumps(row) for row in (first, later, later)))

    assert refused(path, Options(format="mooncake-delta")).startswith(f"{path}:3: a request after")


def test_requests_have_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More requests than allowed are refused."""
    monkeypatch.setattr(assembly, "REQUESTS_MAX", 3)

    assert refused(written(tmp_path, f"{GOOD}\n" * 4)).endswith(
        "more than 3 requests; hint: take a part"
    )


def test_a_good_row_is_accepted(tmp_path: Path) -> None:
    """The control: what the other tests damage is read when it is whole."""
    trace = load(written(tmp_path, GOOD))

    assert msgspec.structs.asdict(trace.requests[0])["input_tokens"] == 3


def test_ids_may_be_hashes(tmp_path: Path) -> None:
    """Any whole number is an id, however many bits it has, and no two are mixed up."""
    ids = [(1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64, 1 << 127, -(1 << 63), -(1 << 80), 0]
    rows = [ROW | {"hash_ids": [name]} for name in ids]
    trace = load(written(tmp_path, "\n".join(json.dumps(row) for row in [*rows, *rows])))

    assert len(trace.parents) == len(ids)
    assert [list(one.blocks) for one in trace.requests] == [[n] for n in range(len(ids))] * 2


def test_a_file_that_is_given_twice(tmp_path: Path) -> None:
    """By whatever name, and beside its folder: it would be twice the requests."""
    path, link = tmp_path / "t.jsonl", tmp_path / "link"
    shutil.copy(SAMPLE["mooncake"], path)
    link.symlink_to(path)

    for again in (path, tmp_path / "." / ".." / tmp_path.name / "t.jsonl", link, tmp_path):
        with pytest.raises(TraceError, match=r"is given twice, also as .*; hint: name each file"):
            load(path, again)
