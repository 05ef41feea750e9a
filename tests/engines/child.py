"""Owns the scenarios that need a real engine; each runs in a process of its own and prints JSON.

`python child.py SCENARIO JSON` inside the engine's environment. It asserts nothing: the tests do.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.engines.fault_child import obey
from tests.engines.rig import LONG, PROMPTS, TAIL, Rig, wrong_bytes

MORE = LONG + "Whatever comes now is computed on top of a prefix that may have been lost. " * 3
RESULT = "RESULT "


def life(rig: Rig) -> dict[str, Any]:
    """Cold, loaded, shared in a batch, with other bytes, with failing loads, and after them."""
    seen: dict[str, Any] = {"cold": rig.run(), "plain": rig.run([MORE])}
    rig.forget()
    rig.cache.clear()
    seen["again"] = rig.run()
    rig.forget()
    seen["loaded"] = rig.run()
    rig.forget()
    seen["together"] = rig.run(together=True)
    rig.forget()
    with wrong_bytes(rig.cache):
        seen["corrupted"] = rig.run()
    rig.forget()
    with rig.lost_leases():
        seen["failing"] = rig.run([*PROMPTS, MORE])
    rig.forget()
    seen["after"] = rig.run([*PROMPTS, MORE])
    rig.forget()
    with rig.lost_leases():
        seen["failing_together"] = rig.run([*PROMPTS, MORE], together=True)
    rig.forget()
    seen["after_together"] = rig.run([*PROMPTS, MORE], together=True)
    seen["counters"] = rig.counters()
    return seen


def manners(rig: Rig) -> dict[str, Any]:
    """Salts, hints, and a request that may not read what is there."""
    seen: dict[str, Any] = {"cold": rig.run([LONG])}
    rig.forget()
    seen["salted"] = rig.run([LONG], salt="a tenant")
    rig.forget()
    seen["salted_again"] = rig.run([LONG], salt="a tenant")
    rig.forget()
    seen["no_load"] = rig.run([LONG], hints={"no_load": True})
    rig.forget()
    seen["no_store"] = rig.run([TAIL[::-1]], hints={"no_store": True})
    rig.forget()
    seen["not_stored"] = rig.run([TAIL[::-1]])
    rig.forget()
    seen["kept"] = rig.run([LONG], hints={"pin_s": 600, "ttl_s": -1, "no_store": 1})
    seen["status"] = rig.cache.status()
    reset = rig.llm.reset_prefix_cache(reset_connector=True)
    seen["reset"] = [reset, rig.run([LONG])[0]]
    return seen


def announced(rig: Rig) -> dict[str, Any]:
    """What the engine's event stream says about blocks, on the device and in kvwise."""
    batches: list[Any] = []
    rig.scheduler.kv_event_publisher.publish = batches.append
    rig.run([LONG, TAIL])
    rig.forget()
    with rig.lost_leases():
        rig.run([LONG])
    return {
        "events": [
            {
                "kind": type(event).__name__,
                "medium": getattr(event, "medium", None),
                "hashes": getattr(event, "block_hashes", None),
                "parent": getattr(event, "parent_block_hash", None),
                "tokens": getattr(event, "token_ids", None),
            }
            for batch in batches
            for event in batch.events
        ]
    }


def preempted(rig: Rig) -> dict[str, Any]:
    """More requests than blocks: some are preempted and come back."""
    prompts = [f"{number} is the number of this one. " * 8 for number in (11, 22, 33, 44)]
    seen: dict[str, Any] = {"alone": rig.run(prompts, tokens=200)}
    rig.forget()
    seen["together"] = rig.run(prompts, together=True, tokens=200)
    rig.forget()
    seen["loaded"] = rig.run(prompts, together=True, tokens=200)
    seen["counters"] = rig.counters()
    seen["preemptions"] = preemptions(rig)
    return seen


def storm(rig: Rig) -> dict[str, Any]:
    """Many prompts with common beginnings, too few blocks, and every third load fails."""
    families = [f"Family {n} of prompts begins like this. " * 6 for n in range(4)]
    prompts = [
        families[n % 4][: 150 + 23 * (n % 5)] + f" Number {n} goes on alone. " * (n % 3 + 1)
        for n in range(16)
    ]
    aside: dict[str, object] = {"no_load": True, "no_store": True}
    seen: dict[str, Any] = {"alone": rig.run(prompts, hints=aside)}
    for number in range(3):
        rig.forget()
        with rig.lost_leases(every=3):
            seen[f"round {number}"] = rig.run(prompts, together=True)
    rig.forget()
    seen["calm"] = rig.run(prompts, together=True)
    seen["counters"] = rig.counters()
    seen["preemptions"] = preemptions(rig)
    seen["status"] = rig.cache.status()
    return seen


def preemptions(rig: Rig) -> int:
    """How often vLLM has preempted a request."""
    (count,) = (
        metric.value for metric in rig.llm.get_metrics() if metric.name == "vllm:num_preemptions"
    )
    return int(count)


def aborted(rig: Rig) -> dict[str, Any]:
    """A request is aborted while its load is under way; its blocks and its lease come back."""
    seen: dict[str, Any] = {"cold": rig.run([LONG])}
    rig.forget()
    engine, scheduler = rig.llm.llm_engine, rig.scheduler
    pool = scheduler.kv_cache_manager.block_pool
    free = pool.get_num_free_blocks()
    with rig.held_loads() as let_go:
        engine.add_request("late", LONG, rig.params())
        for _ in range(5):
            engine.step()
        seen["held_blocks"] = free - pool.get_num_free_blocks()
        seen["status"] = [str(request.status) for request in scheduler.requests.values()]
        engine.abort_request(["late"])
        deadline = time.monotonic() + 10
        while scheduler.requests and time.monotonic() < deadline:
            engine.engine_core.engine_core.step_fn()
        let_go()
    seen["blocks_missing"] = free - pool.get_num_free_blocks()
    seen["left"] = len(scheduler.requests)
    seen["leases"] = rig.cache.status()
    seen["after"] = rig.run([LONG])
    return seen


def failed_policy(rig: Rig) -> dict[str, Any]:
    """With policy `fail` a failed load ends its request, and nobody else's."""
    seen: dict[str, Any] = {"cold": rig.run()}
    rig.forget()
    with rig.lost_leases():
        seen["failing"] = rig.run([LONG])
    seen["after"] = rig.run()
    rig.forget()
    seen["loaded"] = rig.run()
    return seen


def ranks(rig: Rig, *, socket: str) -> dict[str, Any]:
    """Two ranks, each with its part; the arena is broken from outside."""
    from kvwise.live.client import Client

    seen: dict[str, Any] = {"cold": rig.run()}
    rig.forget()
    seen["loaded"] = rig.run()
    rig.forget()
    client = Client(socket, "vandal", timeout_s=5)
    with wrong_bytes(client):
        seen["corrupted"] = rig.run()
    client.close()
    seen["counters"] = rig.counters()
    return seen


def visit(rig: Rig) -> dict[str, Any]:
    """One engine of several: what it finds first, and what after forgetting its own cache."""
    seen: dict[str, Any] = {"first": rig.run()}
    rig.forget()
    seen["loaded"] = rig.run()
    seen["flushed"] = rig.cache.flush(20)
    return seen


def deserted(rig: Rig, *, pause: str) -> dict[str, Any]:
    """The daemon is killed under the engine, stays away, and comes back."""
    seen: dict[str, Any] = {"cold": rig.run()}
    rig.forget()
    seen["loaded"] = rig.run()
    rig.cache.flush(20)
    for stage in ("away", "back"):
        Path(f"{pause}.{stage}").touch()
        deadline = time.monotonic() + 60
        while Path(f"{pause}.{stage}").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        if stage == "back":
            time.sleep(2)  # the client looks for a daemon once in a second
        rig.forget()
        begin = time.monotonic()
        seen[stage] = rig.run()
        seen[f"{stage}_s"] = time.monotonic() - begin
    rig.forget()
    with wrong_bytes(rig.cache):
        seen["corrupted"] = rig.run()
    seen["counters"] = rig.counters()
    return seen


def real(rig: Rig) -> dict[str, Any]:
    """Real text through a real model."""
    facts = "\n".join(
        f"Visitor {n} came at {n % 12 + 1} o'clock and left a book." for n in range(60)
    )
    prompt = rig.llm.get_tokenizer().apply_chat_template(
        [{"role": "user", "content": f"{facts}\nWrite a story about these visitors and a cat."}],
        tokenize=False,
        add_generation_prompt=True,
    )
    seen: dict[str, Any] = {
        "prompt_tokens": len(rig.llm.get_tokenizer().encode(prompt)),
        "cold": rig.run([prompt], tokens=48),
    }
    rig.forget()
    seen["loaded"] = rig.run([prompt], tokens=48)
    rig.forget()
    with wrong_bytes(rig.cache):
        seen["corrupted"] = rig.run([prompt], tokens=48)
    return seen


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (
        life,
        manners,
        announced,
        preempted,
        storm,
        aborted,
        failed_policy,
        ranks,
        visit,
        deserted,
        real,
        obey,
    )
}


def main() -> None:
    """Run one scenario and print what was seen as the last line."""
    name, text = sys.argv[1:]
    given = json.loads(text)
    rig = Rig(**given["rig"])
    begin = time.monotonic()
    seen = SCENARIOS[name](rig, **given.get("more", {}))
    seen["seconds"] = time.monotonic() - begin
    print(RESULT + json.dumps(seen, default=str), flush=True)


if __name__ == "__main__":
    main()
