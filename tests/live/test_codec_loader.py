"""How a daemon comes to its codecs: loaded, compiled elsewhere, or not at all and why."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from kvwise import cli
from kvwise.cli.explain_codecs import codec_lines
from kvwise.codecs import compiler, forms, kept
from kvwise.codecs.exponent import Exponent
from kvwise.codecs.forms import Codecs
from kvwise.codecs.kept import NotKeptError
from kvwise.core.elements import Coding, Elements
from kvwise.live.blocks import put
from kvwise.live.client import Client
from kvwise.live.codecs import CodecLoader
from kvwise.live.store import Store
from tests.live.support import eventually, prompt, settings, thread_daemon
from tests.live.test_codecs import KV, RAW, coding, fill, payloads

pytestmark = [
    pytest.mark.skipif(not forms.at_hand(), reason="Numba is not installed"),
    pytest.mark.timeout(600),  # the compiler gives way to whoever else is busy
]

CODINGS = {Coding.FIXED: forms.WARM}
WAIT_S = 280.0


class Missing(Codecs):
    """Codecs of which no machine code is kept."""

    def make(self, number: int) -> None:
        """Not without the compiler."""
        raise NotKeptError(str(number))

    def warm(self, codings: object, elements: Elements = forms.WARM) -> None:
        """Not without the compiler."""
        raise NotKeptError(str(codings))


def test_what_is_kept_is_loaded_here() -> None:
    """No other process is needed, readers have their codec, and who asked hears of it."""
    codecs, heard = Codecs(on_demand=False), list[tuple[Coding, ...]]()
    codecs.make(Exponent.id)  # so that it is kept
    loader = CodecLoader(codecs, heard.append)
    assert loader.load(CODINGS, [Exponent.id]).wait(WAIT_S)
    assert eventually(lambda: heard == [(Coding.FIXED,)], WAIT_S)
    said = loader.status()
    assert (said["failure"], said["compiling"], said["compiled_s"]) == ("", False, 0.0)
    assert said["loaded_s"] > 0
    assert eventually(lambda: not loader.status()["loading"], WAIT_S)
    loader.close(WAIT_S)


def test_nothing_to_load_is_there_at_once() -> None:
    """No thread is started for nothing."""
    loader = CodecLoader(Codecs(), lambda _: pytest.fail("nothing was loaded"))
    assert loader.load({}).is_set()
    loader.close(WAIT_S)


def test_a_compiler_that_fails_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A real process that ends badly: its last words are the reason, in log and status."""
    monkeypatch.setattr(compiler, "words", lambda *_: ["nonsense:bf16"])
    codecs, heard = Missing(), list[tuple[Coding, ...]]()
    loader = CodecLoader(codecs, heard.append)
    with caplog.at_level(logging.WARNING):
        assert loader.load(CODINGS).wait(WAIT_S)
        assert eventually(lambda: heard == [()], WAIT_S)
    reason = "the compiler ended with status 1: ValueError: 'nonsense' is not a valid Coding"
    assert loader.status()["failure"] == codecs.failure == reason
    assert [one.message for one in caplog.records if reason in one.message]
    loader.load(CODINGS).wait(WAIT_S)
    assert heard == [()]  # failed once, failed for good
    loader.close(WAIT_S)


def test_a_daemon_that_ends_takes_its_compiler_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waited for codecs goes on while they are compiled; closing ends the process."""
    monkeypatch.setenv("HOME", str(tmp_path))
    loader = CodecLoader(Missing(), lambda _: pytest.fail("it was not loaded"))
    assert loader.load(CODINGS).wait(WAIT_S)
    assert eventually(lambda: loader.status()["compiling"], WAIT_S)
    child = loader._child
    assert child is not None
    loader.close(WAIT_S)
    assert child.poll() is not None
    assert not [thread for thread in loader._threads if thread.is_alive()]
    assert loader.load(CODINGS).wait(WAIT_S)
    assert loader.status()["compiling"] is False


def test_where_nothing_can_be_kept_there_are_no_codecs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store goes on without them, and `kvwise explain` says where nothing could be written."""
    monkeypatch.setattr(kept, "folder", lambda: "")
    store = Store.open(settings(tmp_path, disk=True, dram_size=8 * RAW, disk_codec="auto"))
    store.join(KV)
    assert eventually(lambda: store.status()["codecs"]["failure"] != "", WAIT_S)
    fill(store, range(2))
    status = store.status()
    assert (coding(store)["coding"], coding(store)["why"]) == ("plain", "no_numba")
    told = {**status["coding"], **status["codecs"]}
    told["choices"] = store.status()["coding"]["choices"]
    (line,) = codec_lines(told)
    assert "machine code cannot be kept: ~/.cache/kvwise/machine-code cannot be written" in line
    store.close()


def test_explain_tells_of_codecs_before_any_decision(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Objects were written and nobody asked for one: how they were written is told all the same."""
    config = settings(tmp_path, disk=True, dram_size=8 * RAW, disk_codec="off")
    keys = prompt(1, 4, KV)
    with thread_daemon(config):
        client = Client(config.socket_path, "engine", timeout_s=5.0)
        client.join(KV)
        put(client, KV, keys, payloads(keys))
        assert client.flush(WAIT_S)
        client.close()
        assert cli.run(["explain", "--url", config.socket_path]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "no decisions yet",
        "disk, kv: written plain, disk.codec says so",
    ]
