"""Run by tests of the GPU's codecs in an environment that has Triton: kernels against given bytes.

With `interpret` it runs kernels on host memory, with `compile` it compiles them for GPUs that are
not here. It prints one JSON object and judges nothing. How a case is written is in its name:
`exponent|MODE|KIND|...`, or `fp8|FORM|KIND|TENSOR|HEADS|RUN|...` and `nvfp4|...` in the same way.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray

from kvwise.codecs import exponent_gpu, fp8_gpu, nvfp4_gpu
from kvwise.codecs.elements import Elements, Kind
from kvwise.codecs.scaled import Shape
from kvwise.errors import FrameError
from tests.codecs_gpu.kernels import compile_all

GUARD = 0xA5
GUARD_BYTES = 64
MODULES: dict[str, ModuleType] = {"exponent": exponent_gpu, "fp8": fp8_gpu, "nvfp4": nvfp4_gpu}


def encoder(case: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """How a case is written."""
    name, *how = case.split("|")
    if name == "exponent":
        mode, kind = cast('Literal["fixed", "dense"]', how[0]), Kind(how[1])
        return lambda payload: exponent_gpu.encode(payload, mode, kind)
    form, kind = int(how[0]), Kind(how[1])
    shape = Shape(form, Elements(kind, *(int(number) for number in how[2:5])))
    return lambda payload: cast("torch.Tensor", MODULES[name].encode(payload, shape))


def guarded(size_bytes: int, shift: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Memory between guards, and all of it; `shift` bytes from where words could be read."""
    room = torch.full((size_bytes + 2 * GUARD_BYTES + shift,), GUARD, dtype=torch.uint8)
    return room[GUARD_BYTES + shift : GUARD_BYTES + shift + size_bytes], room


def touched(room: torch.Tensor, size_bytes: int, shift: int) -> int:
    """Guards that are not what they were."""
    before, after = room[: GUARD_BYTES + shift], room[GUARD_BYTES + shift + size_bytes :]
    return int((before != GUARD).sum() + (after != GUARD).sum())


def decoded(
    case: str, stored: NDArray[np.uint8], size_bytes: int, shift: int
) -> tuple[bytes | None, int]:
    """What the kernels make of stored bytes, None if they refuse, and touched guards."""
    payload, room = guarded(size_bytes, shift)
    source, _ = guarded(len(stored), shift)
    source[:] = torch.from_numpy(stored)
    try:
        MODULES[case.partition("|")[0]].decode(source, payload)
    except FrameError:
        return None, touched(room, size_bytes, shift)
    return payload.numpy().tobytes(), touched(room, size_bytes, shift)


def round_trip(case: str, arrays: Any) -> dict[str, int]:
    """What is written otherwise than it should be, or read so, and guards that changed."""
    data, stored = arrays[f"data:{case}"], arrays[f"stored:{case}"]
    shift = len(data) % 3
    payload, room = guarded(len(data), shift)
    payload[:] = torch.from_numpy(data)
    written = encoder(case)(payload)
    kept = written is payload
    answer = {
        "kept": int(kept),
        "written_wrong": int(written.numpy().tobytes() != stored.tobytes()),
        "guards": touched(room, len(data), shift),
    }
    if not kept:
        back, guards = decoded(case, stored, len(data), shift)
        answer["read_wrong"] = int(back != arrays[f"restored:{case}"].tobytes())
        answer["guards"] += guards
    return answer


def verdict(case: str, arrays: Any) -> tuple[str, int]:
    """What becomes of damaged bytes beside what the CPU made of them, and touched guards."""
    expected, size_bytes = arrays[f"expected:{case}"], int(arrays[f"size:{case}"])
    found, guards = decoded(case, arrays[f"damaged:{case}"], size_bytes, 0)
    if len(expected) != size_bytes:
        return "both_refuse" if found is None else "refused_less", guards
    if found is None:
        return "refused_more", guards
    return "both_read" if found == expected.tobytes() else "otherwise", guards


def interpret(arrays: Any) -> dict[str, Any]:
    """All round trips, and verdicts on damaged bytes, counted by codec."""
    names = [key.partition(":")[2] for key in arrays if key.startswith("data:")]
    trips = {name: round_trip(name, arrays) for name in names}
    verdicts: dict[str, int] = {}
    for name in [key.partition(":")[2] for key in arrays if key.startswith("damaged:")]:
        found, guards = verdict(name, arrays)
        verdicts[found] = verdicts.get(found, 0) + 1
        verdicts["guards"] = verdicts.get("guards", 0) + guards
    return {"trips": trips, "verdicts": verdicts}


if __name__ == "__main__":
    what, path = sys.argv[1:]
    print(json.dumps(compile_all() if what == "compile" else interpret(np.load(path))))
