"""Owns how fast codecs are here, by the bench of the codecs in a process with a deadline.

Machine code is made at the first use of a codec, which takes as long as it takes and cannot be
interrupted; a process can. It encodes nothing itself.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import util

from kvwise import config
from kvwise.bench.places import finished
from kvwise.bench.probe.limits import Found, Tell, left_s
from kvwise.bench.provision import engine_folder, model_folder

REAL_S_MIN = 90.0
"""Time below which a model is not asked for real KV: it has to be loaded, and to read."""


def measure_codecs_within(end_s: float, tell: Tell) -> Found:
    """Rates on synthetic KV, and on real KV where engine and model are there and time is left."""
    found = Found()
    if util.find_spec("numba") is None:
        found.skipped.append("codecs: Numba is not installed; hint: pip install 'kvwise[codecs]'")
        return found
    tell("codecs on synthetic KV")
    found.add(_bench("synthetic", left_s(end_s)))
    real_s = left_s(end_s)
    if not (finished(engine_folder()) and finished(model_folder())):
        why = "engine and model are not installed; hint: kvwise bench codec --data kv"
    elif real_s < REAL_S_MIN:
        why = "it takes minutes; hint: kvwise bench codec --data kv"
    else:
        tell("codecs on real KV")
        found.add(_bench("kv", real_s))
        return found
    found.skipped.append(f"codecs on real KV: {why}")
    return found


def _bench(data: str, seconds: float) -> Found:
    """The rows of `kvwise bench codec` on some data."""
    found, name = Found(), f"codecs on {data} KV" if data != "kv" else "codecs on real KV"
    command = [sys.executable, "-m", "kvwise", "bench", "codec"]
    command += ["--data", data, "--quick", "--json"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, check=False,
            env=config.environment(),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        found.skipped.append(
            f"{name}: not done within {seconds:.0f} s, much of which goes into making machine "
            "code, once; hint: run it again, or raise --seconds"
        )
        return found
    if done.returncode:
        said = done.stderr.strip().splitlines()
        found.skipped.append(f"{name}: {' '.join(said[-2:])}")
        return found
    for row in json.loads(done.stdout)["rows"]:
        if row["mode"] != "general":  # compressors that kvwise does not use
            found.rows.append({"part": "codec", **row})
    return found
