"""What Prometheus is told of a run, through Ray: the driver counts for its workers, so nothing is lost with one."""

from __future__ import annotations

from collections.abc import Mapping

from ray.util.metrics import Counter, Gauge

# Total of a worker (`worker.Report.totals`) → what its counter, `specdiff_NAME_total`, is described as.
COUNTERS = {
    "images": "Images finished.",
    "image_failures": "Rows that were tried and have no image.",
    "steps": "Denoising steps of finished images.",
    "rounds": "Rounds of finished images.",
    "sequential_calls": "Sequential network calls of finished images; steps over these is the speed-up.",
    "network_calls": "Network calls for all lanes together.",
    "network_evaluations": "States of finished images that the network saw.",
    "padded_rows": "Rows of network calls that held no state.",
    "network_seconds": "Seconds in the network, by the device's clock.",
    "coupling_seconds": "Seconds in all else that rounds do: drafts and verification.",
    "idle_seconds": "Seconds of a device without work.",
    "decoding_seconds": "Seconds of making pixels of final states, beside the device's work.",
    "encoding_seconds": "Seconds of encoding, beside the device's work.",
    "upload_seconds": "Seconds of writing, uploading and reading back, beside the device's work.",
    "uploaded_bytes": "Bytes of committed data files.",
}
EVENTS = {
    "shards": "Shards, or parts of one, that were committed.",
    "shard_failures": "Attempts at a shard that failed.",
    "worker_deaths": "Workers that died.",
    "images_lost": "Images that were finished and lost with a worker or a failed upload.",
}
GAUGES = {
    "workers_running": "Workers at work.",
    "workers_pending": "Workers that wait for a device or are starting.",
    "images_planned": "Rows that the run is to reach.",
    "images_done": "Rows of them that are done, those of earlier runs included.",
}


# Every counter begins by it, so that it is there before it first counts, and `rate` sees that; Ray refuses 0.
_NOTHING = 5e-324


class Meters:
    """The metrics of one run, each with the job's name as its tag `job`."""

    def __init__(self, job: str) -> None:
        tags = {"job": job}
        self._totals = {name: _counter(name, text, tags, "worker") for name, text in COUNTERS.items()}
        self._events = {name: _counter(name, text, tags) for name, text in EVENTS.items()}
        for counter in self._events.values():
            counter.inc(_NOTHING)
        self._gauges = {
            name: Gauge(f"specdiff_{name}", text, ("job",)).set_default_tags(tags) for name, text in GAUGES.items()
        }

    def advance(self, worker: int, before: Mapping[str, float], now: Mapping[str, float]) -> None:
        """A worker's totals went from `before`, {} at first, to `now`."""
        for name, counter in self._totals.items():
            more = now.get(name, 0) - before.get(name, 0)
            if more > 0 or not before:
                counter.inc(max(more, _NOTHING), {"worker": str(worker)})

    def happened(self, event: str, times: int = 1) -> None:
        """One of `EVENTS`."""
        if times:
            self._events[event].inc(times)

    def show(self, **gauges: int) -> None:
        """Levels, by the names of `GAUGES`."""
        for name, level in gauges.items():
            self._gauges[name].set(level)


def _counter(name: str, text: str, tags: dict[str, str], *more: str) -> Counter:
    return Counter(f"specdiff_{name}_total", text, ("job", *more)).set_default_tags(tags)
