"""How fast a set was made, added up over its commit records, whichever runs they came from."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from pipeline.commits import CommitRecord
from pipeline.work import Work

SLICES = 200  # most slices of time that a run's course is kept in
PHASES = ("start", "network", "coupling", "idle")  # of the device
BESIDE = ("decoding", "encoding", "upload")  # of the thread beside it


class Throughput:
    """Sums over records. What is kept grows with runs and workers, not with images.

    A run lasts from its first row begun to its last commit; with its start-up, from when its driver set out. So what
    was lost to dead workers counts as time, and the time between two runs does not.
    """

    def __init__(self) -> None:
        # Whole microseconds, as records hold them, so that sums do not depend on the order of the records.
        self._micros = dict.fromkeys(PHASES + BESIDE, 0)
        self._images = self._records = self._beyond_first = 0
        self._peak_memory = self._peak_device_memory = 0
        self._devices: dict[str, list[int]] = {}  # kind → images, microseconds
        self._runs: dict[float, _Run] = {}

    def add(self, record: CommitRecord) -> None:
        """Counts a record; one that says nothing of time, as by an old version, only by its attempts."""
        self._beyond_first += record.attempt - 1
        if "work" not in record.counters:
            return
        work = Work.from_dict(record.counters["work"])
        self._records += 1
        self._images += record.written
        for name in PHASES + BESIDE:
            self._micros[name] += _micros(getattr(work, name))
        self._peak_memory = max(self._peak_memory, work.peak_memory)
        self._peak_device_memory = max(self._peak_device_memory, work.peak_device_memory)
        device = self._devices.setdefault(record.device, [0, 0])
        device[0] += record.written
        device[1] += sum(_micros(getattr(work, name)) for name in PHASES)
        self._runs.setdefault(work.run, _Run(work.run)).add(work, record.written)

    def to_dict(self) -> dict[str, Any]:
        """For the report; {} where no record tells of time.

        `images_per_s` and `seconds` are the cluster's, without start-up. `shares` are of the time that devices were
        held, start included; `shares_beside` tell for how much of that time the thread beside was decoding, encoding
        and uploading.
        """
        if not self._records:
            return {}
        runs = [self._runs[began] for began in sorted(self._runs)]
        seconds, whole = sum(run.seconds for run in runs), sum(run.seconds_with_start for run in runs)
        micros = sum(self._micros[name] for name in PHASES)
        held, at_work = micros / 1e6, (micros - self._micros["start"]) / 1e6
        return {
            "images": self._images,
            "images_per_s": _ratio(self._images, seconds),
            "images_per_s_with_start": _ratio(self._images, whole),
            "images_per_s_per_worker": _ratio(self._images, at_work),
            "seconds": seconds,
            "seconds_with_start": whole,
            "workers": max(run.workers for run in runs),
            "device_seconds": held,
            "device_seconds_per_1000_images": _ratio(1000 * held, self._images),
            "shares": {name: _ratio(self._micros[name], micros) for name in PHASES},
            "shares_beside": {name: _ratio(self._micros[name], micros) for name in BESIDE},
            "peak_memory_bytes": self._peak_memory,
            "peak_device_memory_bytes": self._peak_device_memory or None,
            "attempts_beyond_first": self._beyond_first,
            "devices": {
                kind: {"images": images, "device_seconds": spent / 1e6}
                for kind, (images, spent) in self._devices.items()
            },
            "runs": [run.to_dict() for run in runs],
        }


@dataclass
class _Run:
    """One driver's time at the set."""

    set_out: float
    images: int = 0
    first: float = float("inf")
    last: float = 0.0
    spans: dict[str, tuple[float, float]] = field(default_factory=dict)  # worker → first begun, last ended
    slice_s: float = 1.0
    course: dict[int, float] = field(default_factory=lambda: defaultdict(float))  # slice of time → images, in parts

    def add(self, work: Work, images: int) -> None:
        began = max(work.began, self.set_out)  # workers' clocks may differ a little from the driver's
        ended = max(work.ended, began)
        self.images += images
        self.first, self.last = min(self.first, began), max(self.last, ended)
        since, until = self.spans.get(work.worker, (began, ended))
        self.spans[work.worker] = min(since, began), max(until, ended)
        while ended - self.set_out >= SLICES * self.slice_s:
            self._coarser()
        self._spread(began - self.set_out, ended - self.set_out, images)

    def _coarser(self) -> None:
        self.slice_s *= 2
        course: dict[int, float] = defaultdict(float)
        for i, images in self.course.items():
            course[i // 2] += images
        self.course = course

    def _spread(self, began: float, ended: float, images: int) -> None:
        """Images are taken to have come evenly between begin and end, of which a record tells no more."""
        first, last = int(began / self.slice_s), int(ended / self.slice_s)
        for i in range(first, last + 1):
            inside = min(ended, (i + 1) * self.slice_s) - max(began, i * self.slice_s)
            self.course[i] += images * inside / (ended - began) if ended > began else images

    @property
    def seconds(self) -> float:
        return self.last - self.first

    @property
    def seconds_with_start(self) -> float:
        return self.last - self.set_out

    @property
    def workers(self) -> int:
        """Most workers at a time."""
        begun = [(since, 1, 1) for since, _ in self.spans.values()]
        ended = [(until, 0, -1) for _, until in self.spans.values()]  # at one moment, first
        most = now = 0
        for _, _, change in sorted(begun + ended):
            now += change
            most = max(most, now)
        return most

    def to_dict(self) -> dict[str, Any]:
        slices = range(int(self.seconds_with_start / self.slice_s) + 1)
        return {
            "began": datetime.fromtimestamp(self.set_out, timezone.utc).isoformat(timespec="seconds"),
            "images": self.images,
            "seconds": self.seconds,
            "seconds_with_start": self.seconds_with_start,
            "workers": self.workers,
            "slice_s": self.slice_s,
            "images_per_s": [round(self.course[i] / self.slice_s, 4) for i in slices],
        }


def _micros(seconds: float) -> int:
    return round(1e6 * seconds)


def _ratio(above: float, below: float) -> float | None:
    return above / below if below else None
