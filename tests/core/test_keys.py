"""Keys: golden vectors, and the promise that no field can imitate another."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise.core.keys import KEY_BYTES, adopt_keys, chain_keys, namespace_digest, split_keys

SPACE = namespace_digest({"model": "tiny", "dtype": "bf16"})


@pytest.mark.pain("K1", "R7")
def test_golden_vectors() -> None:
    """Keys never change between releases: other processes and old disks depend on them."""
    assert SPACE.hex() == "7a06e751d5ebdf7f22b9a22c86364ff6"
    assert (
        chain_keys(SPACE, range(8), 4).hex()
        == "833590657eda557132687bb1523521da55631e02dd71ccdec2e267793d24e112"
    )
    assert (
        chain_keys(SPACE, range(8), 4, [("salt", b"a")]).hex()
        == "3b01bfec54feb99dcf31bc7ec22f98ecf67d057ea2526274fce1a5860593133d"
    )
    adopted = adopt_keys(SPACE, [b"x" * 32, b"y" * 32], [("adapter", b"z")])
    assert adopted.hex() == "b1c9ab4a3b5ced8dd02273a770fc012a82ff21f2b1ba31144e6910bb29950881"


@pytest.mark.pain("K1")
def test_k1_equal_in_processes_with_different_hash_seeds() -> None:
    """K1: two fresh processes with different PYTHONHASHSEED agree."""
    code = (
        "from kvwise.core.keys import *;"
        "s = namespace_digest({'model': 'tiny', 'dtype': 'bf16'});"
        "print(chain_keys(s, range(64), 16, [('salt', b'q'), ('adapter', b'r')]).hex())"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("0", "1", "random")
    }
    assert len(outputs) == 1


def test_field_order_does_not_matter() -> None:
    """A namespace is a set of named facts."""
    assert namespace_digest({"a": "1", "b": "2"}) == namespace_digest({"b": "2", "a": "1"})


@pytest.mark.pain("W8")
@given(st.text(), st.text(), st.text(), st.text())
def test_w8_fields_cannot_imitate_each_other(a: str, b: str, c: str, d: str) -> None:
    """W8: a salt equal to an adapter name gives another key."""
    first, second = {"salt": a, "adapter": b}, {"salt": c, "adapter": d}
    assert (namespace_digest(first) == namespace_digest(second)) == (first == second)
    one = chain_keys(SPACE, range(4), 4, [("salt", a.encode("utf-8", "surrogatepass"))])
    two = chain_keys(SPACE, range(4), 4, [("adapter", a.encode("utf-8", "surrogatepass"))])
    assert one != two


@given(st.lists(st.integers(0, 2**32 - 1), max_size=60), st.integers(0, 59))
def test_a_key_covers_its_whole_prefix(tokens: list[int], change: int) -> None:
    """Changing one token changes the key of its chunk and of every later one, and of no earlier."""
    keys = split_keys(chain_keys(SPACE, tokens, 4))
    assert len(keys) == len(tokens) // 4
    if change < len(tokens):
        other = list(tokens)
        other[change] ^= 1
        changed = split_keys(chain_keys(SPACE, other, 4))
        for place, (before, after) in enumerate(zip(keys, changed, strict=True)):
            assert (before == after) == (place < change // 4)


def test_partial_chunks_have_no_key() -> None:
    """Only whole chunks are cached."""
    assert chain_keys(SPACE, range(7), 8) == b""
    assert len(chain_keys(SPACE, range(17), 8)) == 2 * KEY_BYTES


@pytest.mark.pain("W6")
def test_adopted_keys_depend_on_space_and_extra_fields() -> None:
    """Two models, or two adapters, never share a key although the engine's digest is equal (W6)."""
    digest = [b"d" * 32]
    other = namespace_digest({"model": "other", "dtype": "bf16"})
    keys = {
        adopt_keys(SPACE, digest),
        adopt_keys(other, digest),
        adopt_keys(SPACE, digest, [("adapter", b"one")]),
        adopt_keys(SPACE, digest, [("adapter", b"two")]),
        adopt_keys(SPACE, digest, [("salt", b"one")]),
    }
    assert len(keys) == 5
