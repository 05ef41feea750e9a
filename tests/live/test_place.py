"""Where a daemon listens: one for each path, put back when removed, and its user's alone."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import time
from pathlib import Path

import pytest

from kvwise.config import Config
from kvwise.errors import ConfigError
from kvwise.live.blocks import get, put
from kvwise.live.daemon import LOOK_S, Daemon
from kvwise.live.place import SocketPlace, safe_directory
from tests.live.support import (
    SPACE,
    asks,
    client_of,
    eventually,
    payloads,
    prompt,
    served,
    settings,
    thread_daemon,
)


def test_two_daemons_cannot_share_a_socket(config: Config, running: Daemon) -> None:
    """The second one is refused, is told who is there, and the first goes on."""
    with pytest.raises(ConfigError, match=f"pid {os.getpid()}"):
        SocketPlace(Path(config.socket_path))

    client_of(config).close()


def test_a_stale_socket_is_reclaimed(config: Config, tmp_path: Path) -> None:
    """A socket file that a killed daemon left does not stop the next one."""
    with served(config, tmp_path) as daemon:
        daemon.end(signal.SIGKILL)
    assert Path(config.socket_path).is_socket()

    with served(config, tmp_path) as daemon:
        daemon.client().close()


def listens(path: str) -> bool:
    """Whether somebody answers there; a socket that is bound but not yet listened at refuses."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        return caller.connect_ex(path) == 0


@pytest.mark.parametrize("whole", [False, True], ids=["socket", "directory"])
def test_a_removed_socket_is_put_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, whole: bool
) -> None:
    """Whoever removes the socket of a daemon, or its directory, sees it again, and a warning."""
    place = tmp_path / "run"
    place.mkdir(mode=0o700)
    config = settings(tmp_path, serve_socket=str(place / "kvwise.sock"))
    keys = prompt(1, 2)
    with thread_daemon(config):
        attached = client_of(config)
        put(attached, SPACE, keys, payloads(keys))
        if whole:
            shutil.rmtree(place)
        else:
            Path(config.socket_path).unlink()
        assert get(attached, SPACE, keys) == payloads(keys)
        assert eventually(lambda: listens(config.socket_path))

        newcomer = client_of(config, "newcomer")

        assert get(newcomer, SPACE, keys) == payloads(keys)
        with pytest.raises(ConfigError, match="another daemon"):
            SocketPlace(Path(config.socket_path))
        newcomer.close()
        attached.close()
    assert caplog.text.count("was removed; listening there again") == 1
    assert not Path(config.socket_path).exists()


def test_a_successors_socket_is_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """After the directory was removed and another daemon took the path, neither fights for it."""
    place = tmp_path / "run"
    config = settings(tmp_path, serve_socket=str(place / "kvwise.sock"))
    with thread_daemon(config):
        attached = client_of(config)
        shutil.rmtree(place)
        successor = SocketPlace(Path(config.socket_path))
        with successor.listen():
            assert eventually(lambda: "another daemon serves" in caplog.text)
            time.sleep(2 * LOOK_S)
            assert successor.is_intact
            assert asks(attached)
            attached.close()
    assert successor.is_intact
    assert caplog.text.count("another daemon serves") == 1
    successor.close()


def test_a_file_at_the_socket_path_is_not_removed(config: Config) -> None:
    """Something that is no socket is somebody's; the daemon refuses instead of deleting it."""
    path = Path(config.socket_path)
    path.write_text("precious")
    place = SocketPlace(path)

    with pytest.raises(ConfigError, match="not a socket"):
        place.listen()
    place.close()

    assert path.read_text() == "precious"


def test_a_link_in_place_of_the_lock_is_not_followed(config: Config, tmp_path: Path) -> None:
    """A link that somebody put where the lock file goes costs its target nothing."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    Path(f"{config.socket_path}.lock").symlink_to(victim)

    with pytest.raises(ConfigError, match="cannot lock"):
        SocketPlace(Path(config.socket_path))

    assert victim.read_text() == "precious"


@pytest.mark.pain("S2", "S3")
def test_the_socket_belongs_to_its_user(config: Config, running: Daemon, tmp_path: Path) -> None:
    """Mode 0600, in a directory made 0700; a directory that others may write to is refused."""
    assert Path(config.socket_path).stat().st_mode & 0o777 == 0o600
    made = tmp_path / "made"
    safe_directory(made)
    assert made.stat().st_mode & 0o777 == 0o700
    made.chmod(0o777)

    with pytest.raises(ConfigError, match="other users"):
        safe_directory(made)
