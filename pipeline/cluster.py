"""The Ray cluster: the one there is, or one of our own on this machine."""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from textwrap import shorten
from typing import Any

# Before Ray is imported: no usage reports, and no warning about CPU workers on machines with GPUs.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import ray
from ray.util.scheduling_strategies import NodeLabelSchedulingStrategy, NotIn

from pipeline.errors import Unavailable, UsageError

REACH_S = 10.0
_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "include_dashboard": False}


@contextmanager
def connected() -> Iterator[bool]:
    """A connection to the cluster that `RAY_ADDRESS` names (`auto`: the one that `ray start` started on this machine),
    else a cluster started for the block, which listens on loopback only. Yields whether it was started.

    Ray reports deaths of workers on standard output; they are the driver's to report, so nothing is shown of it.

    Raises:
        Unavailable: the cluster that `RAY_ADDRESS` names cannot be reached.
    """
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        if ray.is_initialized():
            yield False
            return
        started = _connect()
        try:
            yield started
        finally:
            ray.shutdown()


def _connect() -> bool:
    address = os.environ.get("RAY_ADDRESS")
    if not address:
        # Ray would look for clusters on this machine by itself, and find those that other runs started for themselves.
        ray.init(address="local", _node_ip_address="127.0.0.1", **_QUIET)
        return True
    try:
        if address != "auto":
            # Ray itself would go on trying for a quarter of an hour.
            host, _, port = address.removeprefix("ray://").rpartition(":")
            socket.create_connection((host, int(port)), timeout=REACH_S).close()
        ray.init(address=address, **_QUIET)
    except (OSError, RuntimeError, ValueError) as error:
        raise Unavailable(f"RAY_ADDRESS={address}: no Ray cluster can be reached there: {one_line(error)}") from error
    return False


def elsewhere(nodes: Sequence[str]) -> Any:
    """Ray's scheduling strategy that spreads workers, or one that takes other nodes than these where there is room."""
    # Ray labels every node with its own name, under a key that has been spelt in several ways.
    keys = {key for node in ray.nodes() for key, value in node["Labels"].items() if value == node["NodeID"]}
    if not nodes or not keys:
        return "SPREAD"
    return NodeLabelSchedulingStrategy(hard={}, soft={key: NotIn(*nodes) for key in keys})


def gpus_per_worker(asked: float | None) -> float:
    """What a job asks for, or 1 where the cluster has GPUs and 0 elsewhere."""
    if asked is not None:
        return asked
    return 1.0 if ray.cluster_resources().get("GPU", 0) else 0.0


def check_machine(threads: int, gpus: float) -> None:
    """Refuses workers that this machine cannot hold, where it is the whole cluster.

    Raises:
        UsageError: not even one worker fits.
    """
    there = ray.cluster_resources()
    for name, setting, asked in (("CPU", "threads", threads), ("GPU", "gpus", gpus)):
        if asked > there.get(name, 0):
            raise UsageError(
                f"workers.{setting}: a worker asks for {asked:g} {name}s, and this machine has {there.get(name, 0):g}; "
                "ask for fewer, or set RAY_ADDRESS to a cluster that has them"
            )


def death(error: Exception) -> str:
    """Why an actor is gone, in one line, from the paragraphs that Ray says about it."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip()
    lines = text.splitlines()
    frames = [i for i, line in enumerate(lines[:-1]) if line.startswith(" ")]
    if frames:  # of a traceback: the error follows the last one
        reason = " ".join(lines[frames[-1] + 1 :])
    else:
        detail = re.search(r"Worker exit detail: (.*?)(?: Some common causes| If the process|$)", text, re.DOTALL)
        reason = detail[1] if detail else lines[-1]
    return shorten(reason, 300, placeholder=" …")


def one_line(error: Exception) -> str:
    return " ".join(str(error).split())
