"""Whole objects in and out of a cache, for tests, benchmarks and scripts. Engines use the verbs.

It copies through ordinary memory and waits where an engine would go on working.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Sequence

from kvwise.core.keys import KEY_BYTES, ROOT
from kvwise.core.words import Namespace
from kvwise.live.clock import deadline_after, now_ns, seconds_until
from kvwise.live.leases import unpack_pages
from kvwise.live.messages import Ask, Cache, Fill, Offer, Release, Step

LOOK_S = 0.0005

_numbers = itertools.count(1)


def _request(verb: str) -> str:
    """A name for each call, in a forked child too: the same keys again are another use of them."""
    return f"{verb}-{os.getpid()}-{next(_numbers)}"


def put(
    cache: Cache,
    namespace: Namespace,
    keys: bytes,
    payloads: Sequence[bytes],
    *,
    parent: bytes = ROOT,
) -> int:
    """Offer objects, one payload for each key, and fill those that are granted.

    Returns how many were stored; the others were there already or were refused.
    """
    space = namespace.digest
    offer = Offer(request=_request("put"), space=space, parent=parent, keys=keys)
    (grant,) = cache.step(Step(offers=[offer]))
    if not grant.lease or cache.progress(grant.lease)[1]:
        return 0
    memory, page_bytes = cache.pages, cache.page_bytes
    each = -(-namespace.layout.object_bytes // page_bytes)
    pages = unpack_pages(grant.pages)
    for place, chunk in enumerate(grant.chunks):
        payload = payloads[chunk]
        if len(payload) != namespace.layout.object_bytes:
            raise ValueError(f"a payload of {len(payload)} bytes does not fit the layout")
        for n, page in enumerate(pages[place * each : (place + 1) * each]):
            piece = payload[n * page_bytes : (n + 1) * page_bytes]
            memory[page * page_bytes : page * page_bytes + len(piece)] = piece
    good = 0 if cache.progress(grant.lease)[1] else len(grant.chunks)
    cache.step(Step(fills=[Fill(grant.lease, good)]))
    return good


def get(cache: Cache, namespace: Namespace, keys: bytes) -> list[bytes]:
    """The payloads of the leading keys that the cache loads; shorter than `keys` after a miss.

    What a plan decides to recompute is a miss here too.
    """
    count, layout = len(keys) // KEY_BYTES, namespace.layout
    ask = Ask(
        request=_request("get"),
        space=namespace.digest,
        keys=keys,
        local_tokens=0,
        total_tokens=count * layout.chunk_tokens + 1,
    )
    plan = cache.ask(ask)
    if not plan.lease:
        return []
    started_ns = now_ns()
    grant = cache.want(plan.lease, plan.chunks)
    payloads: list[bytes] = []
    if grant.chunks and _arrived(cache, plan.lease, len(grant.chunks), plan.wait_s):
        memory, page_bytes = cache.pages, cache.page_bytes
        pages = unpack_pages(grant.pages)
        each = len(pages) // len(grant.chunks)
        for place in range(len(grant.chunks)):
            mine = pages[place * each : (place + 1) * each]
            whole = b"".join(memory[p * page_bytes : (p + 1) * page_bytes] for p in mine)
            payloads.append(whole[: layout.object_bytes])
    if cache.progress(plan.lease)[1]:
        payloads = []
    release = Release(
        plan.lease,
        copied_bytes=sum(map(len, payloads)),
        waited_ns=now_ns() - started_ns,
        failed=not payloads,
    )
    cache.step(Step(releases=[release]))
    return payloads


def _arrived(cache: Cache, lease: int, chunks: int, wait_s: float) -> bool:
    """Wait until a load is complete; False when it failed or took too long."""
    deadline_ns, pause = deadline_after(wait_s), threading.Event()
    while True:
        ready, failed = cache.progress(lease)
        if failed or ready >= chunks:
            return not failed
        if not seconds_until(deadline_ns):
            return False
        pause.wait(LOOK_S)
