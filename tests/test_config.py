"""The configuration: what is read, from where, and what is refused with which hint."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvwise import config as configuration
from kvwise.config import KEYS, Config, load, render
from kvwise.config.values import split_address
from kvwise.errors import ConfigError
from kvwise.host import Host, check_host

GIB = 1 << 30


def of(**values: object) -> Config:
    """A configuration from section_key values."""
    named = {name.replace("_", ".", 1): value for name, value in values.items()}
    return load(overrides=named, environ={})


def test_defaults_are_allowed() -> None:
    """With nothing configured everything has its default and nothing contradicts."""
    config = load(environ={})

    assert config == Config()
    assert {key.name: config.value(key.name) for key in KEYS} == {k.name: k.default for k in KEYS}


def test_there_are_few_keys() -> None:
    """At most thirty, and each says what it does."""
    assert len(KEYS) <= 30
    assert all(key.text for key in KEYS)
    assert len({key.name for key in KEYS}) == len(KEYS)


def test_later_sources_win(tmp_path: Path) -> None:
    """File over defaults, environment over file, overrides over all."""
    file = tmp_path / "kvwise.toml"
    file.write_text('[dram]\nsize = "1GiB"\npage = "64KiB"\n[plan]\nmargin = 0.3\n')
    environ = {"KVWISE_DRAM_SIZE": "2GiB", "KVWISE_DRAM_PAGE": "32KiB"}

    config = load(file, {"dram": {"size": "3GiB"}}, environ=environ)

    assert config.dram.size == 3 * GIB
    assert config.dram.page == 32 << 10
    assert config.plan.margin == 0.3


def test_the_environment_can_name_the_file(tmp_path: Path) -> None:
    """KVWISE_CONFIG is read when no file is given, and only then."""
    file, other = tmp_path / "a.toml", tmp_path / "b.toml"
    file.write_text("[plan]\nmargin = 0.5\n")
    other.write_text("[plan]\nmargin = 0.7\n")
    environ = {"KVWISE_CONFIG": str(file)}

    assert load(environ=environ).plan.margin == 0.5
    assert load(other, environ=environ).plan.margin == 0.7


def test_overrides_are_nested_or_dotted() -> None:
    """An engine's extra configuration may be written either way."""
    nested = load(overrides={"client": {"load": "sync"}, "plan": {"margin": 1}}, environ={})
    dotted = load(overrides={"client.load": "sync", "plan.margin": 1}, environ={})

    assert nested == dotted


def test_lists_can_be_written_in_the_environment(tmp_path: Path) -> None:
    """Paths are separated by colons there."""
    environ = {"KVWISE_DISK_PATHS": f"{tmp_path}/a:{tmp_path}/b", "KVWISE_DISK_SIZE": "1GiB"}

    assert load(environ=environ).disk.paths == (f"{tmp_path}/a", f"{tmp_path}/b")


def test_paths_are_made_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A daemon's paths mean the same wherever it was started."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/somebody")

    config = of(disk_paths=["here", "~/there"], disk_size="1GiB")

    assert config.disk.paths == (str(tmp_path / "here"), "/home/somebody/there")


@pytest.mark.pain("G2")
@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("dram.sise", "dram.size"),
        ("disk.path", "disk.paths"),
        ("size", "dram.size"),
        ("plan.timeout", "plan.timeout_s"),
        ("drm.size", "dram.size"),
        ("dramm", "dram"),
    ],
)
def test_an_unknown_key_names_the_nearest(name: str, meant: str) -> None:
    """A mistyped key is refused, and the one that was meant is offered."""
    with pytest.raises(ConfigError, match=f"no key {name!r}.*did you mean {meant!r}"):
        load(overrides={name: 1}, environ={})


def test_an_unknown_section_in_a_file_is_refused(tmp_path: Path) -> None:
    """The file is named; a key like none lists them all."""
    file = tmp_path / "kvwise.toml"
    file.write_text("[zzzz]\nqqqq = 1\n")

    with pytest.raises(ConfigError, match=rf"{file}.*keys are dram\.size"):
        load(file, environ={})


@pytest.mark.pain("G1")
@pytest.mark.parametrize(
    "variable", ["KVWISE_DRAM_SISE", "KVWISE_DRAMSIZE", "KVWISE_PLAN_ANYTHING", "KVWISE_DRM_SIZE"]
)
def test_a_mistyped_variable_is_refused(variable: str) -> None:
    """A setting exported under the wrong name must not become a silent default."""
    with pytest.raises(ConfigError, match=f"{variable}.*did you mean KVWISE_"):
        load(environ={variable: "1GiB"})


def test_a_bad_value_says_where_it_was_written(tmp_path: Path) -> None:
    """The file, the variable or the flag is named: the same key may be set in several places."""
    file = tmp_path / "kvwise.toml"
    file.write_text('[dram]\nsize = "many"\n')
    environ = {"KVWISE_DRAM_SIZE": "lots"}

    with pytest.raises(ConfigError, match=rf"^{file}: dram\.size = 'many'"):
        load(file, environ={})
    with pytest.raises(ConfigError, match=r"^KVWISE_DRAM_SIZE: dram\.size = 'lots'"):
        load(file, environ=environ)
    with pytest.raises(ConfigError, match=r"^--dram: dram\.size = 'more'"):
        load(file, {"dram.size": "more"}, environ=environ, flags={"dram.size": "--dram"})
    with pytest.raises(ConfigError, match=r"^options: dram\.size = 'more'"):
        load(file, {"dram": {"size": "more"}}, environ=environ)


def test_a_contradiction_says_where_both_sides_were_written(tmp_path: Path) -> None:
    """Two settings that cannot be meant together are often written by two people."""
    file = tmp_path / "kvwise.toml"
    file.write_text('[dram]\nsize = "1MiB"\n')
    told = rf"\(dram\.size is from {file}, dram\.page is from KVWISE_DRAM_PAGE\); hint: raise"

    with pytest.raises(ConfigError, match=told):
        load(file, environ={"KVWISE_DRAM_PAGE": "1MiB"})


@pytest.mark.parametrize(
    "text", ['"dram.size" = "1GiB"\n[dram]\nsize = "2GiB"\n', '[dram]\nsize = 1\n["dram.size"]\n']
)
def test_a_key_written_in_two_ways_is_refused(tmp_path: Path, text: str) -> None:
    """A quoted dotted name and a table entry are the same key; neither silently wins."""
    file = tmp_path / "kvwise.toml"
    file.write_text(text)
    told = rf"{file}: dram\.size is given twice, as 'dram\.size' and as 'size' in \[dram\]"

    with pytest.raises(ConfigError, match=told):
        load(file, environ={})


def test_variables_of_tools_are_left_alone() -> None:
    """What is no setting, and looks like none, belongs to somebody else."""
    assert load(environ={"KVWISE_ENGINE_PYTHON": "/x", "OTHER": "1"}) == Config()


@pytest.mark.pain("G1")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dram.size", "4GB!"),
        ("dram.size", -1),
        ("dram.size", True),
        ("dram.size", 1.5),
        ("dram.hugepages", "yes"),
        ("disk.paths", 7),
        ("disk.paths", [7]),
        ("disk.threads", "two"),
        ("disk.threads", 1.5),
        ("plan.margin", "nan"),
        ("plan.margin", -0.1),
        ("plan.margin", float("inf")),
        ("plan.policy", "always"),
        ("plan.policy", ["load"]),
        ("evict.policy", "random"),
        ("serve.metrics", "localhost"),
        ("serve.metrics", "localhost:99999"),
        ("serve.socket", 5),
        ("client.load", None),
        ("dram.size", "9" * 400 + "TiB"),
        ("dram.size", 10**400),
        ("write.queue", "9999999999TiB"),
        ("plan.timeout_s", 1e308),
        ("serve.linger_s", 1e200),
        ("serve.socket", "~no-such-user/socket"),
        ("serve.socket", "/tmp/a\0b"),
        ("serve.socket", "/tmp/\udcff"),
        ("disk.paths", [""]),
        ("disk.paths", ["/a\0b"]),
        ("serve.metrics", "a" * 300 + ":1"),
        ("serve.metrics", "\u00e9..x:1"),
    ],
)
def test_a_value_that_is_not_allowed_is_refused(name: str, value: object) -> None:
    """The message names the key, the value and what may be written."""
    key = next(key for key in KEYS if key.name == name)

    with pytest.raises(ConfigError) as caught:
        load(overrides={name: value}, environ={})

    assert name in str(caught.value)
    assert repr(value) in str(caught.value)
    assert key.kind.allowed in str(caught.value)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"dram_page": 1000}, "multiple of 4KiB"),
        ({"dram_page": "128MiB"}, "64MiB"),
        ({"dram_page": 0}, "multiple of 4KiB"),
        ({"dram_size": "1MiB"}, "16 pages"),
        ({"disk_size": "1GiB"}, "disk.paths"),
        ({"disk_paths": ["/x"]}, "disk.size"),
        ({"disk_paths": ["/x", "/x/"], "disk_size": "1GiB"}, "twice"),
        ({"disk_paths": ["/x"], "disk_size": "1MiB"}, "segment"),
        ({"disk_segment": "1MiB"}, "4MiB"),
        ({"disk_threads": 0}, "1 to 64"),
        ({"disk_threads": 100}, "1 to 64"),
        ({"plan_timeout_s": 0}, "plan.timeout_s"),
        ({"client_timeout_s": 0}, "client.timeout_s"),
        ({"serve_socket": "/" + "s" * 120}, "socket address"),
        ({"client_url": "/" + "s" * 120}, "client.url"),
    ],
)
def test_contradictions_are_refused(values: dict[str, object], words: str) -> None:
    """Values that cannot be meant together, or cannot work anywhere, are refused at once."""
    with pytest.raises(ConfigError, match=words):
        of(**values)


@pytest.mark.pain("M8")
def test_more_memory_than_the_machine_has_is_refused() -> None:
    """The message tells what the machine has."""
    with pytest.raises(ConfigError, match="whole node"):
        check_host(of(dram_size="900TiB"))


def test_more_memory_than_the_container_may_have_is_refused(tmp_path: Path) -> None:
    """A control group's limit is held against the arena before the kernel does it with a kill."""
    for name, text in (
        ("proc/self/cgroup", "0::/box"),
        ("sys/fs/cgroup/box/memory.max", str(1 << 28)),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    with pytest.raises(
        ConfigError, match=r"256\.0 MiB of memory that .* control group.*hint: lower"
    ):
        check_host(of(dram_size="512MiB"), Host(tmp_path))
    check_host(of(dram_size="256MiB"), Host(tmp_path))


@pytest.mark.pain("D2")
def test_a_disk_cap_above_the_filesystem_is_refused(tmp_path: Path) -> None:
    """Directories on one filesystem share it, and need not exist yet."""
    paths = [str(tmp_path / "not" / "yet"), str(tmp_path / "b")]

    with pytest.raises(ConfigError, match=r"lower disk\.size"):
        check_host(of(disk_paths=paths, disk_size="900TiB"))
    with pytest.raises(ConfigError, match=r"disk\.min_free"):
        check_host(of(disk_paths=paths, disk_size="1GiB", disk_min_free="900TiB"))
    check_host(of(disk_paths=paths, disk_size="300MiB", disk_segment="4MiB", disk_min_free=0))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"not toml", "not valid TOML"),
        (b"\xff\xfe", "not valid TOML"),
        (b"x = 1" + b"0" * 5000, "not valid TOML"),
        (b"x = " + b"[" * 5000, "not valid TOML"),
        (b"dram = 3", "section"),
    ],
)
def test_a_broken_file_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    """A file that is no configuration is named, with what is wrong."""
    file = tmp_path / "kvwise.toml"
    file.write_bytes(content)

    with pytest.raises(ConfigError, match=words):
        load(file, environ={})
    with pytest.raises(ConfigError, match="cannot read"):
        load(tmp_path / "none.toml", environ={})


@given(
    size=st.integers(1 << 21, 1 << 40),
    margin=st.floats(0, 100),
    text=st.text(
        st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=30
    ),
)
def test_what_is_printed_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, size: int, margin: float, text: str
) -> None:
    """A printed configuration means the same, whatever it holds."""
    file = tmp_path_factory.getbasetemp() / "printed.toml"
    paths = [f"/x/{text}", "/y"]
    config = of(
        dram_size=size,
        plan_margin=margin,
        disk_paths=paths,
        disk_size="1GiB",
        serve_socket="/tmp/s",
    )
    file.write_text(render(config), encoding="utf-8")

    assert load(file, environ={}) == config


def test_the_runtime_directory_belongs_to_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """XDG_RUNTIME_DIR when there is one; otherwise a directory named after the user."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert load(environ={}).socket_path == str(tmp_path / "kvwise" / "kvwise.sock")

    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "missing"))
    assert load(environ={}).socket_path.startswith("/tmp/kvwise-")


def test_a_child_is_not_told_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment for a daemon that gets a file holds no settings that would override it."""
    monkeypatch.setenv("KVWISE_DRAM_SIZE", "1GiB")
    monkeypatch.setenv("KVWISE_CONFIG", "/x")
    monkeypatch.setenv("UNRELATED", "1")

    environment = configuration.environment()

    assert "KVWISE_DRAM_SIZE" not in environment
    assert "KVWISE_CONFIG" not in environment
    assert environment["UNRELATED"] == "1"


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1:1", ("127.0.0.1", 1)), ("[::1]:9", ("::1", 9)), ("h:0", ("h", 0))],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    """Host and port are told apart at the last colon."""
    assert split_address(text) == address


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("write.min_chance", 1.5, "a number from 0 to 1"),
        ("plan.margin", 1e10, "a number from 0 to 1000000000"),
        ("disk.threads", 1e17, "a whole number from 0 to 9007199254740992"),
        ("dram.size", "9PiB", "at most 8PiB"),
    ],
)
def test_a_bound_is_named(name: str, value: object, words: str) -> None:
    """Who wrote a number that is out of range is told the range."""
    with pytest.raises(ConfigError, match=words):
        load(overrides={name: value}, environ={})


def test_a_file_without_end_is_refused() -> None:
    """What never ends is not read to its end."""
    with pytest.raises(ConfigError, match="longer than 1MiB"):
        load("/dev/zero", environ={})


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """Opening one would wait until somebody writes to it."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="is a pipe; hint:"):
        load(tmp_path / "pipe", environ={})
