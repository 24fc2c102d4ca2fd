"""Processes that want one lease; a module of its own, because a process imports all of the module that it starts in."""

from __future__ import annotations

import multiprocessing
from multiprocessing.synchronize import Barrier

from pipeline.errors import Unavailable
from pipeline.lease import Lease
from pipeline.storage import Storage

ROUNDS = 20


def contend(uri: str, barrier: Barrier, results: multiprocessing.Queue[list[bool]]) -> None:
    """One of several that want the lease of a folder at the same time, again and again; four folders in turn."""
    won = []
    for number in range(ROUNDS):
        lease = Lease(Storage(f"{uri}/{number % 4}"), 60)
        barrier.wait(60)
        try:
            with lease:
                won.append(True)
                barrier.wait(60)
        except Unavailable:
            won.append(False)
            barrier.wait(60)
    results.put(won)
