"""Times from a file: between them, beyond them, how wrong that is, and what is refused."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise.errors import ConfigError
from kvwise.planner.catalogue import find_model
from kvwise.planner.demand import Demand
from kvwise.planner.hardware import read_hardware
from kvwise.planner.oracle import Row, Times, estimate_of, read_times, times_text
from kvwise.planner.prefill import Prefill
from kvwise.planner.recompute import oracle_of
from kvwise.planner.shapes import Precisions
from kvwise.sim.trace.distance import measure_reuse
from tests.sim.replay.support import made
from tests.sim.trace.support import quiet

PUBLISHED = Path(__file__).with_name("prefill_times.csv")
GPU = read_hardware().gpu("h100-sxm")


def file_of(folder: Path, text: str) -> Path:
    """A file of times."""
    path = folder / "times.csv"
    path.write_text(text)
    return path


def test_break_evens_of_a_file_are_the_published_ones(tmp_path: Path) -> None:
    """Given the published times as files, all 100 break-even rates come out within 1 %."""
    with PUBLISHED.open() as file:
        rows = list(csv.DictReader(file))
    groups: dict[tuple[str, str, str], list[dict[str, str]]] = {}
    for row in rows:
        groups.setdefault((row["model"], row["gpu"], row["tp"]), []).append(row)
    checked = 0
    for (name, gpu, ranks), group in groups.items():
        lines = [f"{row['tokens']},{float(row['prefill_ms']) / 1e3}" for row in group]
        path = file_of(tmp_path, "\n".join(["tokens,seconds", *lines]))
        model = find_model(name)
        oracle = oracle_of(str(path), model, read_hardware().gpu(gpu), int(ranks))
        for row in group:
            tokens = int(row["tokens"])
            rate = float(model.sequence_bytes(tokens, Precisions())) / oracle.seconds(tokens) / 1e9

            assert rate == pytest.approx(float(row["node_gb_per_s"]), rel=0.01, abs=0.005)
            checked += 1
    assert checked == 100


@given(
    st.lists(st.tuples(st.integers(1, 500), st.floats(1e-4, 10)), min_size=2, max_size=9),
    st.integers(1, 9_000),
    st.integers(1, 9_000),
)
def test_longer_prompts_take_longer(steps: list[tuple[int, float]], one: int, other: int) -> None:
    """Wherever it is asked, the curve passes its knots and never falls."""
    tokens, seconds, rows = 0, 0.0, []
    for more, longer in steps:
        tokens, seconds = tokens + more, seconds + longer
        rows.append(Row(tokens, seconds))
    times = Times("here", rows)

    assert all(times.seconds(row.tokens) == pytest.approx(row.seconds) for row in rows)
    assert times.seconds(min(one, other)) <= times.seconds(max(one, other)) * (1 + 1e-9)


def test_the_law_of_an_engine_is_found_again() -> None:
    """Between and beyond lengths that were measured, times are those of the law that made them."""

    def law(tokens: int) -> float:
        return 0.02 + 7e-4 * tokens + 2e-7 * tokens * tokens / 2

    times = Times("here", [Row(n, law(n)) for n in (128, 512, 1024, 2048, 4096)])

    for tokens in (32, 700, 1500, 3000, 16_384):
        assert times.seconds(tokens) == pytest.approx(law(tokens), rel=0.02)
    assert times.seconds(256, 2048) == pytest.approx(law(2304) - law(2048) + 0.02, rel=0.03)
    assert times.estimate(4096).error_median == pytest.approx(0.0, abs=0.03)


def test_what_is_not_smooth_says_how_wrong_it_is() -> None:
    """The error that is stated is that of a length that was left out."""
    rows = [Row(100, 0.1), Row(200, 0.2), Row(400, 0.8), Row(800, 0.9), Row(1600, 1.8)]
    found = Times("mine.csv", rows).estimate(100_000)

    assert found.error_most is not None
    assert found.error_most > 0.3
    assert "mine.csv" in found.said
    assert "longest prompt has 100,000" in found.said
    assert Times("x", rows[:2]).estimate(100).error_median is None


def test_cached_tokens_are_taken_into_account(tmp_path: Path) -> None:
    """Rows after cached tokens say by how much such computing differs from the difference."""
    text = "# note\ntokens,cached_tokens,seconds\n1000,0,1.0\n2000,0,2.0\n\n500,1000,1.0\n"
    times = read_times(file_of(tmp_path, text))

    assert times.seconds(500, 1000) == pytest.approx(1.0)
    assert times.seconds(250, 1000) == pytest.approx(0.5, rel=0.05)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    """Times and their notes, from one run to the next; the median stands for several."""
    times = Times("x", [Row(10, 0.1), Row(10, 0.3), Row(10, 0.2), Row(20, 0.5)])
    path = tmp_path / "out.csv"
    path.write_text(times_text(times, ["measured here", "by 'a\n1,2'"]))

    assert read_times(path).knots == [(10, 0.2), (20, 0.5)]
    assert path.read_text().startswith("# measured here\n# by 'a 1,2'\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty; hint: its first line is tokens,seconds"),
        ("tokens,ms\n1,2\n", "line 1: there is no column 'seconds'"),
        ("tokens,seconds,gpu\n", "line 1: column 'gpu' is unknown"),
        ("tokens,seconds,tokens\n", "line 1: column 'tokens' is unknown or there twice"),
        ("tokens,seconds\n1,2\n# more\n8,x\n", "line 4: seconds: 'x' is no number"),
        ("tokens,seconds\n1.5,2\n", "line 2: tokens: '1.5' is no whole number"),
        ("tokens,seconds\n0,2\n", "line 2: tokens: '0' is not between"),
        ("tokens,seconds\n1,nan\n", "line 2: seconds: 'nan' is not above 0"),
        ("tokens,seconds\n1,-1\n", "line 2: seconds: '-1' is not above 0"),
        ("tokens,seconds\n1\n", "line 2: 1 fields, and the first line has 2"),
        ('tokens,seconds\n"1,2\n', "line 2 is no line of a table"),
        ("tokens,seconds\n1,2\n", "at least two lengths"),
        (
            "tokens,seconds,cached_tokens\n100,1,4000\n200,2,8000\n",
            "two lengths are needed .* there is none, beside 2 with cached_tokens; hint: ",
        ),
        ("tokens,seconds\n1,2\n5,3\n9,3\n", "line 4: seconds: 9 tokens take 3, and 5 take 3"),
    ],
)
def test_a_wrong_line_is_named(text: str, said: str, tmp_path: Path) -> None:
    """Errors name the file, the line and the field."""
    with pytest.raises(ConfigError, match=said):
        read_times(file_of(tmp_path, text))


def test_a_file_that_is_none(tmp_path: Path) -> None:
    """It is refused with what may be given instead."""
    with pytest.raises(ConfigError, match="hint: --recompute is roofline, aiconfigurator or a CSV"):
        read_times(tmp_path / "none.csv")


def test_a_file_answers_for_a_model_that_has_no_estimate(tmp_path: Path) -> None:
    """Where no roofline is known, times that somebody measured are enough for a plan."""
    path = file_of(tmp_path, "tokens,seconds\n1000,0.1\n8000,1.0\n64000,12\n")
    oracle = oracle_of(str(path), find_model("deepseek-v4-pro"), GPU, 8)
    trace = made(60)
    demand = Demand(trace, measure_reuse(trace, quiet), oracle)

    assert demand.compute_s > 0
    assert estimate_of(oracle, demand.longest_tokens).by == str(path)
    assert isinstance(oracle_of("roofline", find_model("llama-3.1-8b"), GPU, 1), Prefill)


def test_tables_as_spreadsheets_write_them(tmp_path: Path) -> None:
    """A mark of byte order is no part of a name; other separators are named."""
    path = tmp_path / "mine.csv"
    path.write_text("\ufefftokens,seconds\n100,0.1\n200,0.2\n", "utf-8")
    assert [tokens for tokens, _ in read_times(path).knots] == [100, 200]
    for mark, said in ((";", "semicolons part"), ("\t", "tabs part")):
        path.write_text(f"tokens{mark}seconds\n100{mark}0.1\n")
        with pytest.raises(ConfigError, match=f"line 1: {said} the columns; hint: write commas"):
            read_times(path)
