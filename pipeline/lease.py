"""One driver an output: who created the lease with the highest number holds it, as long as it gives signs of life.

`lease/0001.json` is created exclusively and written again and again while its holder lives; the time at which the
storage says it was last written is the sign of life, so that no two machines' clocks are compared. A holder that ends
marks its lease as released. Numbers only rise: a driver that slept through its lease finds a higher one and stops.
"""

from __future__ import annotations

import json
import os
import re
import socket
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import Any

from pipeline.damage import reading
from pipeline.errors import Unavailable
from pipeline.storage import Storage

FOLDER = "lease/"
_CLOCK = "lease/clock"  # written to learn the storage's time
_NAME = re.compile(r"lease/(\d{4,})\.json")


@dataclass(frozen=True)
class Holder:
    """Who drives, or drove.

    Attributes:
        number: of the lease.
        host, pid: of the process.
        process: names the process for ever (`_process`); '' where the system cannot tell.
        since: when it began, by its own clock.
        released: it has ended, and in order.
        progress: how far it was at its last sign of life: images of this run, their rate, workers; and `lost_images`,
            finished and not committed by this driver and those before it, and `unpublished`, finished and not yet
            committed.
    """

    number: int
    host: str
    pid: int
    process: str
    since: str
    released: bool = False
    progress: dict[str, Any] = field(default_factory=dict)

    @property
    def lost_images(self) -> int:
        """Images that were finished, and lost when this driver or one before it, or one of their workers, died."""
        return int(self.progress.get("lost_images", 0)) + int(self.progress.get("unpublished", 0))

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since}"


class Held(Unavailable):
    """Another driver is at work on the output."""


class Superseded(Unavailable):
    """Another driver has taken the output over."""


class Lease:
    """Held while it is entered. `check` must be asked before anything is written.

    Attributes:
        number: of the lease that is held.
        progress: what the next sign of life tells of the run.
    """

    def __init__(self, storage: Storage, timeout: float) -> None:
        """`timeout`: seconds without a sign of life after which another driver may take the output over."""
        self._storage = storage
        self._timeout = timeout
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self.number = 0
        self.progress: dict[str, Any] = {}

    def __enter__(self) -> Lease:
        """Raises Held where another driver holds the lease, and says who; Unavailable."""
        self._began = time.monotonic()
        before = current(self._storage)
        if before is not None and not self._is_free(before):
            raise Held(_held(self._storage, before))
        self.number = 1 if before is None else before.number + 1
        self.progress = {"lost_images": 0 if before is None else before.lost_images}
        pid = os.getpid()
        self._holder = Holder(self.number, socket.gethostname(), pid, _process(pid), _now())
        try:
            self._storage.create(_path(self.number), _to_json(self._holder))
        except FileExistsError:
            winner = current(self._storage)
            raise Held(_held(self._storage, winner) if winner else f"{self._storage.uri}: try again") from None
        self._renewed = self._began
        for path in self._storage.list(FOLDER):
            if path == _CLOCK or (_number(path) or self.number) < self.number:
                self._storage.remove(path)
        threading.Thread(target=self._keep, name="lease", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        # Whoever finds it unreleased takes it over after the timeout.
        with self._lock, suppress(Unavailable):
            self._write(released=True)

    def check(self) -> None:
        """Raises Superseded where another driver has taken over, Unavailable where that cannot be found out."""
        if time.monotonic() - self._renewed > self._timeout / 2:
            self._renew()

    def _keep(self) -> None:
        """In a thread of its own: a sign of life in good time."""
        while not self._ended.wait(self._timeout / 4):
            # What fails here fails again, and is reported, where the lease is checked.
            with suppress(Unavailable):
                self._renew()

    def _renew(self) -> None:
        with self._lock:
            if self._ended.is_set():
                return
            began = time.monotonic()
            self._write(released=False)
            self._renewed = began

    def _write(self, *, released: bool) -> None:
        check_not_superseded(self._storage, self.number)
        holder = replace(self._holder, released=released, progress=self.progress)
        self._storage.replace(_path(self.number), _to_json(holder))

    def _is_free(self, holder: Holder) -> bool:
        if holder.released or _is_dead(holder):
            return True
        self._storage.replace(_CLOCK, b"")
        age = self._storage.modified(_CLOCK) - self._storage.modified(_path(holder.number))
        return age > self._timeout


class NotHeld(Exception):
    """Something is to be written, and there is no lease yet."""


class LeasedStorage(Storage):
    """A storage that is written to only under a lease; in worker processes it is a plain one."""

    def __init__(self, uri: str, lease: Lease | None) -> None:
        """Without a lease, everything that writes raises NotHeld."""
        super().__init__(uri)
        self._lease = lease

    def lease(self) -> Lease:
        """The lease that is held. Raises NotHeld, Superseded, Unavailable."""
        if self._lease is None:
            raise NotHeld
        self._lease.check()
        return self._lease

    def create(self, path: str, data: bytes) -> None:
        self.lease()
        super().create(path, data)

    def upload(self, local_path: str, path: str) -> None:
        self.lease()
        super().upload(local_path, path)

    def replace(self, path: str, data: bytes) -> None:
        self.lease()
        super().replace(path, data)

    def remove(self, path: str) -> None:
        self.lease()
        super().remove(path)


def current(storage: Storage) -> Holder | None:
    """Who holds the lease, or was the last to hold it."""
    while True:
        number = _highest(storage)
        if not number:
            return None
        try:
            data = storage.read(_path(number))
        except FileNotFoundError:  # removed by the holder of a higher one
            continue
        with reading(storage, _path(number)):
            return Holder(**json.loads(data))


def remove_leases(storage: Storage) -> None:
    """Removes the files by which drivers agree; nobody may be driving."""
    for path in storage.list(FOLDER):
        if path == _CLOCK or _number(path) is not None:
            storage.remove(path)


def check_not_superseded(storage: Storage, number: int) -> None:
    """Raises Superseded where there is a lease with a higher number."""
    if _highest(storage) > number:
        other = current(storage)
        raise Superseded(f"{storage.uri}: another driver has taken over ({other}); this one has stopped")


def _highest(storage: Storage) -> int:
    return max((number for path in storage.list(FOLDER) if (number := _number(path)) is not None), default=0)


def _number(path: str) -> int | None:
    match = _NAME.fullmatch(path)
    return int(match[1]) if match else None


def _path(number: int) -> str:
    return f"{FOLDER}{number:04d}.json"


def _to_json(holder: Holder) -> bytes:
    return json.dumps(asdict(holder)).encode() + b"\n"


def _held(storage: Storage, holder: Holder) -> str:
    return (
        f"{storage.uri}: another driver is at work there ({holder}); try later. If it died, its lease can be taken "
        "over once output.lease_timeout is over"
    )


def _process(pid: int) -> str:
    """Names a process of this system beyond its end: boot, name space of process numbers, and start. '' if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        status, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if status in "ZX" else f"{boot} {os.readlink('/proc/self/ns/pid')} {fields[18]}"
    except OSError:
        return ""


def _is_dead(holder: Holder) -> bool:
    """Whether the holder was a process of this very system and is there no more, so that nobody need wait for it."""
    ours = _process(os.getpid()).rpartition(" ")[0]
    return bool(ours) and holder.process.rpartition(" ")[0] == ours and _process(holder.pid) != holder.process


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
