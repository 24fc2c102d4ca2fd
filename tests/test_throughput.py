"""Throughput adds up over records, whichever runs and workers they came from."""

from __future__ import annotations

import io
import itertools

import pytest

import pipeline.progress
from pipeline.commits import CommitRecord
from pipeline.progress import Progress, Standing
from pipeline.throughput import SLICES, Throughput
from pipeline.words import counted, flaws
from pipeline.work import Work

_shards = itertools.count()


def record(work: Work | None, written: int = 10, attempt: int = 1, device: str = "cpu") -> CommitRecord:
    return CommitRecord(
        shard=next(_shards),
        revision=0,
        first_row=0,
        rows=written,
        written=written,
        failed=(),
        skipped=0,
        file="data/part-00000.parquet",
        file_sha256="",
        bytes=0,
        attempt=attempt,
        device=device,
        counters={} if work is None else {"work": work.to_dict()},
    )


def work(worker: str, run: float, began: float, ended: float, **seconds: float) -> Work:
    return Work(worker=worker, run=run, began=began, ended=ended, **seconds)  # type: ignore[arg-type]


def added(*records: CommitRecord) -> Throughput:
    throughput = Throughput()
    for each in records:
        throughput.add(each)
    return throughput


def test_two_runs_add_up_and_the_night_between_them_does_not() -> None:
    """Two workers for ten seconds, and the next day one for five."""
    day = 86400.0
    found = added(
        record(work("a", 0, 3, 13, start=2, network=8, coupling=1, idle=1, encoding=0.5, upload=0.25), attempt=2),
        record(work("b", 0, 4, 12, start=2, network=6, coupling=1, idle=1)),
        record(work("c", day, day + 2, day + 7, start=2, network=5), written=20),
    ).to_dict()
    assert found["images"] == 40
    assert found["seconds"] == 15
    assert found["images_per_s"] == pytest.approx(40 / 15)
    assert found["seconds_with_start"] == 20
    assert found["images_per_s_with_start"] == 2
    assert found["workers"] == 2
    assert found["device_seconds"] == 29
    assert found["device_seconds_per_1000_images"] == 725
    assert found["images_per_s_per_worker"] == pytest.approx(40 / 23)
    assert sum(found["shares"].values()) == pytest.approx(1)
    assert found["shares"]["network"] == pytest.approx(19 / 29)
    assert found["shares_beside"] == pytest.approx({"decoding": 0, "encoding": 0.5 / 29, "upload": 0.25 / 29})
    assert found["attempts_beyond_first"] == 1
    assert [run["images"] for run in found["runs"]] == [20, 20]


def test_workers_that_follow_each_other_are_one_at_a_time() -> None:
    found = added(record(work("a", 0, 0, 5)), record(work("b", 0, 5, 9)), record(work("a", 0, 2, 4))).to_dict()
    assert found["workers"] == 1


@pytest.mark.parametrize("length", [3.0, 199.5, 5000.0])
def test_the_course_of_a_run_holds_its_images_in_few_slices(length: float) -> None:
    count = 50
    spans = [(i * length / count, (i + 2) * length / count) for i in range(count)]
    (run,) = added(*(record(work("a", 100, 100 + since, 100 + until)) for since, until in spans)).to_dict()["runs"]
    assert sum(run["images_per_s"]) * run["slice_s"] == pytest.approx(10 * count, rel=1e-3)
    assert len(run["images_per_s"]) <= SLICES + 1


def test_records_without_times_are_left_out() -> None:
    assert added(record(None, attempt=3)).to_dict() == {}
    found = added(record(None, attempt=3), record(work("a", 0, 0, 5))).to_dict()
    assert found["images"] == 10
    assert found["attempts_beyond_first"] == 2


def test_devices_are_told_apart() -> None:
    found = added(
        record(work("a", 0, 0, 5, network=5), device="cpu"), record(work("b", 0, 0, 5, network=4), device="NVIDIA H200")
    ).to_dict()
    assert found["devices"] == {
        "cpu": {"images": 10, "device_seconds": 5},
        "NVIDIA H200": {"images": 10, "device_seconds": 4},
    }


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_in_a_log_file_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(pipeline.progress.time, "monotonic", lambda: now[0])
    log = io.StringIO()
    progress = Progress(1000, 100, log)
    for second in range(1, 101):
        now[0] = float(second)
        progress.update(Standing(images=2 * second - 1, failed=1, running=1, pending=2, speedup=4.5))
    progress.close()
    lines = log.getvalue().splitlines()
    assert lines == [
        "120/1000 images, 2.00 images/s, 07:20 left, speed-up 4.50, 1 failed, 1 worker (+2 pending)",
        "180/1000 images, 2.00 images/s, 06:50 left, speed-up 4.50, 1 failed, 1 worker (+2 pending)",
        "240/1000 images, 2.00 images/s, 06:20 left, speed-up 4.50, 1 failed, 1 worker (+2 pending)",
        "300/1000 images, 2.00 images/s, 05:50 left, speed-up 4.50, 1 failed, 1 worker (+2 pending)",
    ]


def test_progress_in_a_terminal_is_one_line_that_changes() -> None:
    screen = Terminal()
    progress = Progress(10, 0, screen)
    progress.update(Standing(images=4, running=2))
    progress.say("worker 1 died")
    progress.update(Standing(images=10, running=2))
    progress.close()
    shown = screen.getvalue()
    assert shown.count("\n") == 2, "what was said, and the end"
    assert "worker 1 died\n" in shown
    assert "10/10 images" in shown
    assert "0 failed, 2 workers" in shown


def test_numbers_and_their_nouns() -> None:
    assert [counted(n, "worker") for n in (0, 1, 2, 12345)] == ["0 workers", "1 worker", "2 workers", "12,345 workers"]
    assert flaws(1, 1) == "1 row failed, 1 was skipped as bad"
    assert flaws(2, 0) == "2 rows failed, 0 were skipped as bad"
