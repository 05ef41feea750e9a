"""Digests of weights: what they must notice, and what must not matter."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import pytest

from kvwise.engines import identity
from kvwise.engines.identity import adapter_digest, settings_digest, weights_digest
from kvwise.errors import EngineError

TENSORS = 5
TENSOR_BYTES = 400


def model(folder: Path, *, flip: int | None = None, name: str = "model.safetensors") -> Path:
    """A model of five tensors; `flip` changes one byte of its data."""
    folder.mkdir()
    header = {
        f"layer.{n}": {
            "dtype": "F32",
            "shape": [100],
            "data_offsets": [n * TENSOR_BYTES, (n + 1) * TENSOR_BYTES],
        }
        for n in range(TENSORS)
    }
    text = json.dumps(header | {"__metadata__": {"format": "pt"}}).encode()
    data = bytearray(range(200)) * (TENSORS * TENSOR_BYTES // 200)
    if flip is not None:
        data[flip] ^= 1
    (folder / name).write_bytes(struct.pack("<Q", len(text)) + text + data)
    (folder / "config.json").write_text('{"hidden_size": 8}')
    return folder


@pytest.fixture(params=["whole", "sampled"])
def _both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files are read as a whole; large ones are sampled, here all are large."""
    if request.param == "sampled":
        monkeypatch.setattr(identity, "WHOLE_BYTES_MAX", 0)


@pytest.mark.usefixtures("_both_ways")
def test_weights_are_the_same_wherever_they_lie(tmp_path: Path) -> None:
    """A copy under another path has the same digest."""
    first = model(tmp_path / "a")
    shutil.copytree(first, tmp_path / "b" / "c")
    assert weights_digest(first) == weights_digest(tmp_path / "b" / "c")


@pytest.mark.pain("W7")
@pytest.mark.usefixtures("_both_ways")
@pytest.mark.parametrize("tensor", range(TENSORS))
@pytest.mark.parametrize("place", [0, TENSOR_BYTES // 2, TENSOR_BYTES - 1])
def test_a_change_of_any_tensor_is_noticed(tmp_path: Path, tensor: int, place: int) -> None:
    """One other byte at the start, in the middle or at the end of a tensor is another model."""
    right = weights_digest(model(tmp_path / "a"))
    assert weights_digest(model(tmp_path / "b", flip=tensor * TENSOR_BYTES + place)) != right


@pytest.mark.usefixtures("_both_ways")
def test_settings_and_names_of_files_count(tmp_path: Path) -> None:
    """The same tensors with other settings, or split over other files, are another model."""
    right = weights_digest(model(tmp_path / "a"))
    other = model(tmp_path / "b")
    (other / "config.json").write_text('{"hidden_size": 9}')
    assert weights_digest(other) != right
    assert weights_digest(model(tmp_path / "c", name="model-1.safetensors")) != right


def test_other_files_do_not_count(tmp_path: Path) -> None:
    """A tokenizer, a read-me and generation defaults change no KV."""
    folder = model(tmp_path / "a")
    right = weights_digest(folder)
    for name in ("README.md", "tokenizer.json", "generation_config.json"):
        (folder / name).write_text("anything")
    assert weights_digest(folder) == right


def test_unknown_formats_are_sampled_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large file of another format has a digest as well."""
    monkeypatch.setattr(identity, "WHOLE_BYTES_MAX", 0)
    (tmp_path / "model.gguf").write_bytes(bytes(100_000))
    right = weights_digest(tmp_path)
    (tmp_path / "model.gguf").write_bytes(bytes(99_999) + b"\1")
    assert weights_digest(tmp_path) != right


def test_no_weights_are_no_identity(tmp_path: Path) -> None:
    """A directory without weights, or none at all, is refused."""
    with pytest.raises(EngineError, match="no weights"):
        weights_digest(tmp_path)
    with pytest.raises(EngineError, match="cannot read"):
        weights_digest(tmp_path / "gone")


@pytest.mark.parametrize(
    "data", [b"", b"\xff" * 8, struct.pack("<Q", 4) + b"nope", struct.pack("<Q", 2) + b"[]"]
)
def test_a_broken_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    """What calls itself safetensors and is not is named, not guessed at."""
    monkeypatch.setattr(identity, "WHOLE_BYTES_MAX", -1)
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(EngineError, match=r"model\.safetensors"):
        weights_digest(tmp_path)


@pytest.mark.pain("W7")
def test_an_adapter_is_its_content(tmp_path: Path) -> None:
    """Two adapters differ by a byte, whatever they are called; 16 bytes tell them apart."""
    first, second = model(tmp_path / "a"), model(tmp_path / "b", flip=1234)
    assert adapter_digest(first) != adapter_digest(second)
    assert len(adapter_digest(first)) == 16


def test_settings_do_not_depend_on_order_or_version() -> None:
    """Only what the model computes counts."""
    one = settings_digest({"a": 1, "b": {"c": [1, 2]}, "_name_or_path": "/x"})
    two = settings_digest({"b": {"c": [1, 2]}, "a": 1, "transformers_version": "9"})
    assert one == two
    assert one != settings_digest({"a": 1, "b": {"c": [2, 1]}})
