"""The bench of the codecs: real codecs on little data, and a table that fits a terminal."""

from __future__ import annotations

import json

import pytest

from kvwise import cli
from kvwise.bench import codec
from kvwise.bench.codec import CodecOptions, measure_codecs
from kvwise.bench.places import SetupError
from kvwise.codecs.elements import Kind
from kvwise.units import KIB
from tests.bench.fakes import Notes


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few objects."""
    monkeypatch.setattr(codec, "WHOLE_BYTES_QUICK", 1500 * KIB)


def test_rows_say_what_was_measured() -> None:
    """Each codec has a row for each kind of data; noise is stored as it is, constants are not."""
    rows = measure_codecs(CodecOptions(("noise", "constant"), quick=True), Notes())
    found = {(row["codec"], row["data"]): row for row in rows.rows if row["mode"] != "general"}

    names = {"exponent-fixed", "exponent-dense", "fp8-e4m3-head", "nvfp4"}
    assert {name for name, _ in found} == names
    assert found["nvfp4", "constant"]["ratio"] > 3.5
    assert found["exponent-dense", "noise"]["ratio"] == 1.0
    assert found["exponent-fixed", "constant"]["ratio"] > 1.33
    assert found["exponent-dense", "constant"]["ratio"] > 1.45
    for row in rows.rows:
        assert min(row[f"{what}_gbps"] for what in ("encode", "decode", "memcpy")) > 0


def test_the_table_fits_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing of a heading or a name is cut off in 80 columns."""
    assert cli.run(["bench", "codec", "--data", "constant", "--quick", "--passes", "1"]) == 0
    page = capsys.readouterr().out
    table = page.partition("skipped")[0].partition("machine")[0]

    assert "…" not in table
    assert table.count("memcpy") == 2
    assert "exponent-fixed" in table
    assert max(map(len, table.splitlines())) <= 80


def test_json_has_the_rows(capsys: pytest.CaptureFixture[str]) -> None:
    """A program finds every figure under its name."""
    arguments = ["bench", "codec", "--data", "constant", "--quick", "--passes", "1", "--json"]

    assert cli.run(arguments) == 0
    (first, *_) = json.loads(capsys.readouterr().out)["rows"]
    assert {"codec", "mode", "data", "ratio", "encode_gbps", "decode_gbps", "memcpy_gbps"} <= set(
        first
    )


def test_a_codec_that_changes_bytes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: what is decoded is compared, and the codec that failed is named."""

    class Forgetful(codec.General):
        """It restores nothing."""

        def decode(self, stored: object, payload: object) -> None:
            """Leave the target as it is."""

    broken = Forgetful("forgetful", (bytes, bytes))
    monkeypatch.setattr(codec, "_codecs", lambda *_: [(broken, "general")])
    with pytest.raises(SetupError, match="forgetful gave other bytes back"):
        measure_codecs(CodecOptions(("constant",), quick=True), Notes())


@pytest.mark.parametrize("kind", [Kind.BF16, Kind.FP32, Kind.E4M3])
def test_planes_go_apart_and_together(kind: Kind) -> None:
    """Shuffled bytes are those of each place in an element, one place after another."""
    plain = codec.General("none", (bytes, bytes), kind.bytes)
    payload = memoryview(bytes(range(16)))
    (stored,) = plain.encode([payload])
    back = memoryview(bytearray(16))
    plain.decode([stored], [back])

    assert bytes(stored) == bytes(payload[0 :: kind.bytes])[: 16 // kind.bytes] + bytes(
        stored[16 // kind.bytes :]
    )
    assert back == payload
