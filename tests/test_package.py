"""Owns the test of what a user installs. It builds the wheel and looks inside, no more."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
WHEEL_BYTES_MAX = 1_000_000
BASE = {"click", "msgspec", "numpy", "prometheus-client", "rich", "xxhash"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"]
    command += ["--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, timeout=100)
    return zipfile.ZipFile(next(folder.glob("*.whl")))


def test_the_wheel_is_whole(wheel: zipfile.ZipFile) -> None:
    """Every source file is in the wheel, with the typed marker, data files and the licence."""
    inside = set(wheel.namelist())
    source = ROOT / "src"
    wanted = {str(p.relative_to(source)) for p in source.rglob("*") if p.is_file()}

    assert {name for name in wanted - inside if "__pycache__" not in name} == set()
    assert "kvwise/py.typed" in inside
    assert any(name.endswith("licenses/LICENSE") for name in inside)


@pytest.mark.pain("G7")
def test_the_wheel_holds_nothing_compiled(wheel: zipfile.ZipFile) -> None:
    """It is one wheel for every Python and platform, so no symbol can be missing in it."""
    name = Path(str(wheel.filename)).name

    assert name.endswith("-py3-none-any.whl")
    assert [n for n in wheel.namelist() if n.endswith((".so", ".pyd", ".dll", ".dylib"))] == []


def test_the_wheel_holds_nothing_else(wheel: zipfile.ZipFile) -> None:
    """Tests, scripts and documentation stay out, and the wheel is small."""
    inside = wheel.namelist()

    assert [n for n in inside if not n.startswith(("kvwise/", "kvwise-"))] == []
    assert sum(info.compress_size for info in wheel.infolist()) < WHEEL_BYTES_MAX


@pytest.mark.pain("G7")
def test_the_base_needs_six_packages(wheel: zipfile.ZipFile) -> None:
    """Without an extra, the metadata asks for the six packages of the base and no others."""
    name = next(n for n in wheel.namelist() if n.endswith("METADATA"))
    metadata = message_from_string(wheel.read(name).decode())
    needs = metadata.get_all("Requires-Dist") or []

    base = [need for need in needs if "extra ==" not in need]
    assert {need.split(">")[0].strip() for need in base} == BASE
