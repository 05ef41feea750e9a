"""The engine bench: its arithmetic, its prompts, its load, its command line, and a real run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvwise.bench import engine_rig, machine
from kvwise.bench.chat import Message
from kvwise.bench.engine_bench import EngineBenchOptions, _notes, run_engine_bench
from kvwise.bench.engine_cpu import Meter, processes
from kvwise.bench.engine_load import Burst, Load, Timed
from kvwise.bench.engine_one_shot import share_row
from kvwise.bench.engine_prompts import Prompts
from kvwise.bench.engine_quiet import Others, freeze, keep_off, thaw
from kvwise.bench.engine_rig import engine_cores
from kvwise.bench.engine_stats import median, ratio, unrest
from kvwise.bench.engine_switch import Switch
from kvwise.bench.engine_tax import burst_columns, request_columns
from kvwise.bench.places import SetupError
from kvwise.bench.rows import Row, Rows
from kvwise.cli import bench_engine as verb
from kvwise.errors import EngineError
from tests.bench.engines import mentioning, require_engine
from tests.bench.fakes import FakeEngine, Notes, said, serving, used
from tests.processes import state

OPTIONS = EngineBenchOptions(
    out=Path(),
    usual=3,
    usual_bursts=2,
    requests=3,
    starts=1,
    prompt_tokens=256,
    bursts=1,
    hits=1,
    repeats=1,
    restarts=1,
    one_shot=2,
    learn=2,
    spare_cores=0,
    seed=1,
)


# --- arithmetic ---


def test_what_weighs_on_both_sides_of_a_pair_cancels_out() -> None:
    """A machine that slows down ten times in the middle leaves the ratio as it was."""
    under = [1.0, 1.1, 0.9, 10.0, 11.0, 9.0]
    found = ratio([1.02 * value for value in under], under)

    assert found.median == pytest.approx(1.02)
    assert found.low == pytest.approx(1.02)
    assert found.high == pytest.approx(1.02)
    assert found.n == 6


def test_the_interval_shows_how_much_pairs_differ() -> None:
    """It holds the median, and is wider where pairs agree less."""
    calm = ratio([1.00, 1.01, 1.02, 1.03, 1.04], [1.0] * 5)
    wild = ratio([0.50, 0.90, 1.02, 1.20, 1.90], [1.0] * 5)

    assert calm.low <= calm.median <= calm.high
    assert wild.low < calm.low <= calm.high < wild.high


def test_a_value_without_a_partner_is_refused() -> None:
    """As is nothing at all."""
    with pytest.raises(ValueError, match="2 values cannot be paired with 1"):
        ratio([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="0 values"):
        ratio([], [])


def test_neighbouring_pairs_are_drawn_together() -> None:
    """They share what the machine did meanwhile, so that three of them say little more than one."""
    drift = [1 + 0.01 * place for place in range(24)]
    mixed = [drift[place * 7 % 24] for place in range(24)]
    slow, mixed_up = ratio(drift, [1.0] * 24), ratio(mixed, [1.0] * 24)

    assert slow.median == mixed_up.median
    assert slow.high - slow.low > 1.2 * (mixed_up.high - mixed_up.low)
    few = ratio([0.8, 1.0, 1.2], [1.0] * 3)
    assert few.low < few.median < few.high
    assert (ratio([1.2], [1.0]).low, ratio([1.2], [1.0]).high) == (1.2, 1.2)


def test_a_switch_is_seen_by_who_looked_before(tmp_path: Path) -> None:
    """The engine has it open when the bench turns it; a file that is not there is an error."""
    ours = Switch.make(tmp_path / "switch")
    theirs = Switch(tmp_path / "switch")
    seen = [theirs.is_on]
    for on in (False, True):
        ours.turn(on=on)
        seen.append(theirs.is_on)

    assert seen == [True, False, True]
    with pytest.raises(FileNotFoundError):
        Switch(tmp_path / "none")


def test_starts_are_drawn_before_pairs() -> None:
    """Pairs that agree within each start and not between them leave the interval wide."""
    over = [start + 0.001 * (pair % 7) for start in (1.00, 1.02, 1.04) for pair in range(30)]
    ones = [1.0] * len(over)
    apart, together = ratio(over, ones, [30, 30, 30]), ratio(over, ones)

    assert apart.median == together.median
    assert (apart.low, apart.high) == pytest.approx((1.003, 1.043))
    assert (together.low, together.high) == pytest.approx((1.013, 1.033))
    with pytest.raises(ValueError, match="90 pairs"):
        ratio(over, ones, [30, 30])


def test_a_steady_change_of_the_machine_is_no_tax() -> None:
    """A request is compared with what one between its two neighbours would have taken."""
    times = [Timed(100 * 1.1**n, 200 * 1.1**n, 150 * 1.1**n, 4.0, n) for n in range(3)]
    before, now, after = times
    mean = before.mean(after)

    assert mean.ttft_ms == pytest.approx(now.ttft_ms)
    assert mean.request_ms == pytest.approx(now.request_ms)
    assert mean.cpu_ms == pytest.approx(now.cpu_ms)
    assert (mean.waited_ms, mean.cached_tokens) == (4.0, 0)
    assert Burst(100.0, 7).mean(Burst(144.0, 5)) == Burst(120.0, 5)


def test_unrest_is_the_middle_half_over_the_median() -> None:
    """One wild value of many does not make a machine restless."""
    assert unrest([100.0] * 9 + [900.0]) == 0
    assert unrest([90.0, 95.0, 100.0, 105.0, 110.0]) == pytest.approx(0.1)
    assert median([3.0, 1.0, 2.0]) == 2.0


def test_a_row_says_which_way_its_ratios_go() -> None:
    """Slower first tokens give more than one, fewer tokens a second less than one."""
    slow, fast = [Timed(202.0, 404.0, 303.0, 1.0, 0)] * 3, [Timed(200.0, 400.0, 300.0, 1.0, 0)] * 3
    row = request_columns(slow, fast) | burst_columns([Burst(99.0, 0)], [Burst(100.0, 0)])

    assert (row["ttft_ratio"], row["request_ratio"], row["cpu_ratio"]) == (1.01, 1.01, 1.01)
    assert row["n"] == 3
    assert (row["throughput_ratio"], row["n_bursts"]) == (0.99, 1)
    assert row["ttft_ms"] == {"median": 202.0, "low": 202.0, "high": 202.0}
    assert row["base_tokens_per_s"]["median"] == 100.0
    assert row["pairs"][0]["ttft_ms"] == [202.0, 200.0]
    assert row["burst_pairs"] == [[99.0, 100.0]]


# --- prompts ---


def _count(messages: list[Message]) -> int:
    """A tokenizer of words, with some tokens around them."""
    return 7 + sum(3 + len(message["content"].split()) for message in messages)


def test_prompts_have_the_length_that_was_asked_for_and_share_no_beginning() -> None:
    """A shared first block would be a hit."""
    prompts = Prompts(_count, 300, seed=1)
    made = [prompts.next() for _ in range(20)]

    assert {_count(prompt) for prompt in made} == {300} == {prompts.tokens}
    assert len({prompt[0]["content"] for prompt in made}) == 20


def test_the_seed_chooses_the_prompts() -> None:
    """Another run of the same daemon would otherwise find them."""
    first, again, other = (Prompts(_count, 300, seed).next() for seed in (1, 1, 2))

    assert first == again
    assert first != other


def test_a_length_that_cannot_be_had_is_an_error() -> None:
    """A prompt of another length would be compared with nothing."""
    with pytest.raises(EngineError, match="no prompt of 300 tokens can be made"):
        Prompts(lambda _: 500, 300, seed=1)


# --- load ---


def test_a_burst_counts_all_tokens_and_names_every_request() -> None:
    """Engine and cache find each of them under a name of its own."""
    engine = FakeEngine([said("a", 1), said("b", 2), used(30, 16), "[DONE]"])
    with serving(engine) as served:
        load = Load(served.port, answer_tokens=2, meter=Meter([]))
        prompt = [{"role": "user", "content": "hello"}]
        begin_s = time.perf_counter()
        burst = load.burst([prompt] * 5, at_a_time=2)
        seconds = time.perf_counter() - begin_s
        timed = load.one(prompt)
    names = [body["request_id"] for path, body in served.asked if path.endswith("completions")]

    assert len(set(names)) == len(names) == 6
    assert burst.cached_tokens == 5 * 16
    assert burst.tokens_per_s >= 5 * (30 + 2) / seconds
    assert 0 < timed.ttft_ms <= timed.request_ms
    assert timed.cached_tokens == 16
    assert timed.cpu_ms == timed.waited_ms == 0


def test_what_kvwise_held_up_is_its_own_account() -> None:
    """All series of one counter, and nothing else."""
    lines = [
        "# TYPE vllm:kvwise_held_seconds_total counter",
        'vllm:kvwise_held_seconds_total{engine="0",by="copies"} 0.25',
        'vllm:kvwise_held_seconds_total{engine="0",by="answers"} 1.5e-01',
        'vllm:kvwise_held_seconds_created{engine="0",by="copies"} 1.7e+09',
        'vllm:kvwise_load_seconds_total{engine="0"} 7.0',
    ]
    with serving(FakeEngine(metrics="\n".join(lines))) as served:
        held_s = Load(served.port, 1, Meter([])).held_s()

    assert held_s == pytest.approx(0.4)


def test_processor_time_is_that_of_all_threads() -> None:
    """One that works on another thread counts, one that sleeps does not."""
    meter, ended, worked = Meter([os.getpid()]), threading.Event(), threading.Event()

    def work() -> None:
        until_ns = time.thread_time_ns() + 200_000_000
        while time.thread_time_ns() < until_ns:
            pass
        worked.set()
        ended.wait(20)

    begin = meter.read()
    time.sleep(0.2)
    asleep = meter.read() - begin
    thread = threading.Thread(target=work)
    thread.start()
    worked.wait(20)
    busy = meter.read() - begin - asleep
    ended.set()
    thread.join()

    assert asleep.used_ns < 200_000_000 <= busy.used_ns
    assert asleep.waited_ns >= 0 <= busy.waited_ns


def _spinning(seconds: float) -> subprocess.Popen[bytes]:
    """A process in a session of its own that is busy for so long, then sleeps."""
    code = f"import time; end = time.monotonic() + {seconds}\nwhile time.monotonic() < end: pass\n"
    code += "time.sleep(60)"
    return subprocess.Popen([sys.executable, "-c", code], start_new_session=True)


def test_an_engine_is_frozen_but_for_its_server(tmp_path: Path) -> None:
    """So that it hears that it has to end, and can see to the others; afterwards all goes on."""
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
    beat = f"while True: open({str(tmp_path / 'beat')!r}, 'a').write('.')"
    with subprocess.Popen([sys.executable, "-c", code, beat], start_new_session=True) as server:
        try:
            _until((tmp_path / "beat").exists)
            freeze(server.pid)
            (child,) = set(processes({server.pid})) - {server.pid}
            _until(lambda: state(child) == "T")
            waits = state(server.pid)
            size = (tmp_path / "beat").stat().st_size
            time.sleep(0.2)
            still = (tmp_path / "beat").stat().st_size
            thaw(server.pid)
            _until(lambda: (tmp_path / "beat").stat().st_size > still)
        finally:
            os.killpg(server.pid, signal.SIGKILL)

    assert waits != "T"
    assert still == size


def _until(ready: Callable[[], bool]) -> None:
    """Wait for something that must come."""
    deadline = time.monotonic() + 20
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_what_nobody_of_us_uses_is_counted() -> None:
    """A process of the bench does not count, one of others does."""
    with _spinning(60) as child:
        try:
            theirs, ours = Others(set()), Others({child.pid})
            time.sleep(1)
            seen = theirs.cores() - ours.cores()
        finally:
            child.kill()

    assert seen > 0.1


def test_what_is_no_worker_is_kept_off() -> None:
    """On the cores that were spared, all its threads; without such cores it stays where it was."""
    cores = os.sched_getaffinity(0)
    with _spinning(0) as child:
        try:
            keep_off({child.pid}, [])
            before = os.sched_getaffinity(child.pid)
            keep_off({child.pid}, [max(cores)])
            after = os.sched_getaffinity(child.pid)
        finally:
            child.kill()

    assert before == cores
    assert after == {max(cores)}


@pytest.mark.parametrize(
    ("place", "name", "value", "word"),
    [
        (0, "waited", 0.2, "20.0%"),
        (0, "ttft_ratio_interval", [0.985, 1.015], "0.985 and 1.015, since the middle half"),
        (0, "others_cores", 0.4, "0.40 cores"),
        (0, "stored_tokens_per_request", 31, "31 tokens of a request of cold_tax"),
        (1, "stored_tokens_per_request", 0, "0 of 1024 tokens"),
    ],
)
def test_what_spoils_a_run_is_noted(place: int, name: str, value: object, word: str) -> None:
    """Next to how to read the numbers, and to what the control says of them."""
    usual: Row = {"waited": 0.0, "unrest": 0.3, "others_cores": 0.0, "prompt_tokens": 1024}
    usual["ttft_ratio_interval"] = [0.995, 1.01]
    usual |= {"stored_tokens_per_request": 0, "learned_prompts": 90}
    all_: Row = {"stored_tokens_per_request": 992, "prompt_tokens": 1024}
    rows: list[Row] = [usual, all_, {}, _row("control")]
    quiet = _notes(rows)
    said = _notes([row | {name: value} if at == place else row for at, row in enumerate(rows)])

    assert len(said) == len(quiet) + 1
    assert any(word in note for note in said)
    assert any("itself came to 1.000 (1.000 to 1.000)" in note for note in quiet)


def test_an_engine_without_workers_is_an_error() -> None:
    """A ratio of nothing to nothing would be no ratio."""
    with pytest.raises(SetupError, match="no process called VLLM::Worker"):
        Meter.of_workers(os.getsid(0))


# --- command line ---


def test_too_little_memory_is_refused_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is installed for a run that cannot succeed."""
    monkeypatch.setattr(machine, "memory_bytes", lambda _: 1024**3)
    with pytest.raises(SetupError, match=r"1\.0 GiB of memory are available.*hint: end"):
        run_engine_bench(replace(OPTIONS, out=tmp_path), "", Notes())


def test_too_little_disk_is_refused_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon would write nothing, and the tax would look small."""
    monkeypatch.setattr(engine_rig, "DISK_MIN_FREE_BYTES", 1024**6)
    with pytest.raises(SetupError, match="hint: choose another folder with --out"):
        run_engine_bench(replace(OPTIONS, out=tmp_path), "", Notes())


def test_engines_are_left_a_core() -> None:
    """More cores spared than there are is an error with a hint."""
    cores = sorted(os.sched_getaffinity(0))

    assert engine_cores(0) == (cores, [])
    assert engine_cores(len(cores) - 1) == (cores[:1], cores[1:])
    with pytest.raises(SetupError, match="hint: lower --spare-cores"):
        engine_cores(len(cores))


def _row(path: str) -> dict[str, object]:
    """A row as a run makes it."""
    timed, bursts = [Timed(2020.0, 2200.0, 2100.0, 1.0, 0)] * 3, [Burst(900.0, 0)] * 2
    return {"path": path, **request_columns(timed, timed), **burst_columns(bursts, bursts)}


def _rows() -> list[dict[str, object]]:
    """What a run has measured: a tenth of 200 prompts was written, then a hundredth."""
    return [_row("cold_tax"), share_row([117_964_800, 11_796_480], 200, 256)]


@pytest.mark.parametrize("arguments", [["--json"], []])
def test_the_rows_are_printed(monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    """As JSON they are all there is on standard output; otherwise they fit a terminal."""
    rows = Rows("engine", "kvwise bench engine", "", {}, _rows(), notes=["[mind] it"])
    monkeypatch.setattr(verb, "run_engine_bench", lambda *_: rows)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    result = CliRunner().invoke(verb.command, arguments, standalone_mode=False)

    assert result.exception is None
    if arguments:
        assert json.loads(result.stdout)["rows"][0]["ttft_ratio"] == 1.0
    else:
        assert "2,020" in result.stdout
        assert "1.000-1.000" in result.stdout
        assert "400 prompts that nobody sends again, 10.0% and 1.0%" in result.stdout
        assert "note: [mind] it" in result.stdout


# --- a real engine ---


def _command(out: Path) -> list[str]:
    """A run as short as there can be."""
    command = [sys.executable, "-m", "kvwise", "bench", "engine", "--quick", "--json"]
    command += ["--requests", "3", "--cold-requests", "3", "--prompt-tokens", "512"]
    return [*command, "--out", str(out)]


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_short_run_on_a_real_engine(tmp_path: Path) -> None:
    """Every row is there, hits are hits, nothing is left on disk or running."""
    require_engine()
    done = subprocess.run(
        _command(tmp_path / "out"), capture_output=True, text=True, timeout=840, check=False
    )

    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    *rows, once = rows
    usual, all_, tax, control, dram, disk = rows
    names = ["cold_tax", "cold_tax.all", "cold_tax.engines", "control", "hit.dram", "hit.disk"]
    assert [row["path"] for row in rows] == names
    assert (once["path"], once["requests"]) == ("one_shot", 20)
    assert 0 < sum(once["written_bytes"]) <= 2.1 * once["all_bytes"]
    for row in (all_, tax):  # the half that was asked without kvwise is not stored
        assert 512 - 32 <= row["stored_tokens_per_request"] <= row["prompt_tokens"] == 512
    assert [row["n"] for row in rows[:4]] == [3, 3, 3, 2]
    assert [len(row["pairs"]) for row in rows[:4]] == [3, 3, 3, 2]
    assert (tax["n_bursts"], control["n_bursts"]) == (2, 1)
    assert tax["cached_tokens"] == all_["cached_tokens"] == usual["cached_tokens"] == 0
    assert usual["against"] == all_["against"] != tax["against"]
    assert 0 < usual["learned_prompts"] <= 10
    assert 0 <= tax["waited"] <= 1
    assert 0 < tax["held_ms_per_request"] < tax["request_ms"]["median"]
    assert dram["cached_tokens"] == disk["cached_tokens"] == dram["base_cached_tokens"] > 450
    assert all(row["throughput_ratio"] > 0 for row in (tax, control, dram, disk))
    assert all(row["ttft_ratio"] > 0 for row in rows)
    assert list((tmp_path / "out").glob("bench-disk-*")) == []
    assert mentioning(str(tmp_path)) == []


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ctrl_c_leaves_nothing_running(tmp_path: Path) -> None:
    """Engines that are just starting go as well."""
    require_engine()
    out = tmp_path / "out"
    bench = subprocess.Popen(_command(out), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + 240
    while not (out / "cached" / "engine.log").exists() and time.monotonic() < deadline:
        assert bench.poll() is None, bench.communicate()[0]
        time.sleep(0.1)
    bench.send_signal(signal.SIGINT)
    bench.communicate(timeout=120)

    assert bench.returncode != 0
    assert list(out.glob("bench-disk-*")) == []
    assert mentioning(str(tmp_path)) == []
