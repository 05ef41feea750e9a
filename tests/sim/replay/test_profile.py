"""Profiles: the fit of the default one, and files that replace it or are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvwise.errors import ConfigError
from kvwise.sim.replay.profile import (
    DEFAULT,
    LLAMA_70B_ROWS,
    PROFILES,
    fit,
    profile_of,
    read_profile,
)

PROFILE = PROFILES[DEFAULT]


@pytest.mark.parametrize(("tokens", "seconds"), LLAMA_70B_ROWS)
def test_the_default_gives_its_table_again(tokens: int, seconds: float) -> None:
    """The fitted law is within 1 % of every time it was fitted to."""
    assert PROFILE.step_s + PROFILE.compute_s(tokens, 0) == pytest.approx(seconds, rel=0.01)


def test_a_fit_finds_a_law_and_nothing_negative() -> None:
    """Times that follow a law give it back; times that want a negative part give zero for it."""
    law = (0.01, 2e-5, 3e-10)
    rows = [(n, law[0] + law[1] * n + law[2] * n * n / 2) for n in (100, 1_000, 10_000, 100_000)]

    assert fit(rows) == pytest.approx(law)
    assert fit([(1_000, 0.5), (2_000, 1.5), (3_000, 2.5)])[0] == 0


def test_a_file_changes_some_keys(tmp_path: Path) -> None:
    """What a file does not say is as in the default; sizes may have units, rows are fitted."""
    path = tmp_path / "profile.toml"
    path.write_text(
        'name = "mine"\nkv_bytes_per_token = "128KiB"\n'
        "prefill_rows = [[1000, 0.1], [2000, 0.2], [4000, 0.4]]\n"
    )
    profile = read_profile(path)

    assert (profile.name, profile.kv_bytes_per_token) == ("mine", 131_072)
    assert profile.token_s == pytest.approx(1e-4)
    assert profile.link_bytes_per_s == PROFILE.link_bytes_per_s
    assert str(path) in profile.source


def test_all_that_is_wrong_is_said_at_once() -> None:
    """A list of keys, each with what is wrong with it, and one hint."""
    wrong = {"tokens_s": 1.0, "step_s": -1.0, "link_bytes_per_s": "fast", "decode_step_s": 0.1}
    with pytest.raises(ConfigError) as caught:
        profile_of(wrong, "mine.toml")
    first, *listed, hint = str(caught.value).splitlines()

    assert (first, hint[:6]) == ("mine.toml:", "hint: ")
    assert [line.partition(":")[0].strip() for line in listed] == [
        "tokens_s", "step_s", "link_bytes_per_s",
    ]  # fmt: skip
    assert "is it token_s?" in listed[0]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("token_s = 0.0", "token_s: "),
        ("token_s = nan", "token_s: "),
        ("step_s = inf", "step_s: "),
        ('token_s = "fast"', "token_s: "),
        ("kv_bytes_per_token = 0", "kv_bytes_per_token: "),
        ('link_bytes_per_s = "-1GB"', "link_bytes_per_s: not a size"),
        ("tokens_s = 1.0", "tokens_s"),
        ('profile = "other"', "profile: there is no 'other', only llama-3.1-70b-8xh100; hint: "),
        ("profile = [1]", "profile: "),
        ("prefill_rows = [[1, 0.1], [1, 0.2], [1, 0.3]]", "prefill_rows: three"),
        ("prefill_rows = [[1, 0.1, 3]]", "prefill_rows"),
        ("prefill_rows = 1", "prefill_rows: "),
        ("prefill_rows = [[1, 1], [2, 1], [3, 1]]", ": prefill_rows: these times fit no law"),
        ("prefill_rows = [[1, 1e5], [2, 2e5], [3, 3e5]]", ": prefill_rows: these times fit no law"),
        ("prefill_rows = [[1, 0.1], [2, 0.2], [3, 0.3]]\nstep_s = 1.0", "twice"),
        ("= 1", "not valid TOML"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    """What cannot be a profile is an error that names the file and the key."""
    path = tmp_path / "profile.toml"
    path.write_text(text)

    with pytest.raises(ConfigError) as caught:
        read_profile(path)
    assert str(path) in str(caught.value)
    assert complaint in str(caught.value)
