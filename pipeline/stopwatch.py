"""The time of the thread that samples: in the network, in the rest of a round, and waiting."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from specdiff.clock import Clocked

EVERY_S = 1.0


class Stopwatch:
    """Runs from when it is made. A GPU is waited for only in `read`, which is to be called between rounds.

    Attributes:
        network, coupling, idle: seconds up to the last `read`; together, all of them.
    """

    def __init__(self, target: Clocked) -> None:
        self.network = self.coupling = self.idle = 0.0
        self._target = target
        self._target.taken()
        self._waited = 0.0
        self._since = time.perf_counter()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around what waits for work."""
        began = time.perf_counter()
        yield
        self._waited += time.perf_counter() - began

    @property
    def due(self) -> bool:
        """Whether the last `read` is a while ago."""
        return time.perf_counter() - self._since > EVERY_S

    def read(self) -> None:
        """Brings the sums up to now."""
        network = self._target.taken()
        now = time.perf_counter()
        self.network += network
        self.idle += self._waited
        self.coupling += max(now - self._since - network - self._waited, 0.0)
        self._waited, self._since = 0.0, now


def process_age() -> float:
    """Seconds since this process was started; infinity where the system does not tell."""
    try:
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return float("inf")
    return uptime - ticks / os.sysconf("SC_CLK_TCK")
