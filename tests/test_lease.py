"""One driver an output: contended for, taken over, lost, and released."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from contend import ROUNDS, contend
from test_job import finish, hashes, images, job_file, run, start, wait_for_records

from pipeline.errors import Unavailable
from pipeline.lease import Lease, LeasedStorage, NotHeld, Superseded, current
from pipeline.storage import Storage

CONTENDERS = 3
SHORT_S = 3.0  # S3 tells the time in whole seconds, and tests share a busy machine


def test_of_processes_that_contend_exactly_one_wins(storage: Storage) -> None:
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(CONTENDERS), context.Queue()
    processes = [context.Process(target=contend, args=(storage.uri, barrier, results)) for _ in range(CONTENDERS)]
    for process in processes:
        process.start()
    won = [results.get(timeout=120) for _ in processes]
    for process in processes:
        process.join(30)
    assert [sum(each) for each in zip(*won, strict=True)] == [1] * ROUNDS


def test_it_is_held_and_released(storage: Storage) -> None:
    with Lease(storage, 60) as first:
        with pytest.raises(Unavailable) as refusal, Lease(storage, 60):
            pass
        for told in (socket.gethostname(), str(os.getpid()), "since"):
            assert told in str(refusal.value)
        first.check()
    with Lease(storage, 60) as second:
        assert second.number == first.number + 1
        assert [path for path in storage.list("lease/") if path.endswith(".json")] == ["lease/0002.json"]
    holder = current(storage)
    assert holder is not None
    assert holder.released


def foreign(storage: Storage, number: int, **more: object) -> None:
    """A lease of a driver of another machine, from which nothing is heard."""
    holder = {"number": number, "host": "elsewhere", "pid": 1, "process": "", "since": "then", **more}
    storage.create(f"lease/{number:04d}.json", json.dumps(holder).encode())


def test_images_that_were_lost_are_told_on_and_on(storage: Storage) -> None:
    foreign(storage, 1, released=True, progress={"images": 10, "lost_images": 2, "unpublished": 3})
    for _ in range(2):
        with Lease(storage, 60) as lease:
            assert lease.progress == {"lost_images": 5}


def test_case_14_a_silent_holder_is_succeeded_after_the_timeout(storage: Storage) -> None:
    foreign(storage, 7)
    with pytest.raises(Unavailable, match="process 1 on elsewhere, since then"), Lease(storage, SHORT_S):
        pass
    time.sleep(SHORT_S + 1)
    with Lease(storage, SHORT_S) as lease:
        assert lease.number == 8


def test_a_holder_that_lives_is_not_succeeded_after_the_timeout(storage: Storage) -> None:
    with Lease(storage, SHORT_S):
        time.sleep(2 * SHORT_S)
        with pytest.raises(Unavailable), Lease(storage, SHORT_S):
            pass


def test_a_dead_process_of_this_machine_is_not_waited_for(storage: Storage) -> None:
    code = "import os, sys; from pipeline.lease import *; Lease(Storage(sys.argv[1]), 60).__enter__(); os._exit(1)"
    subprocess.run([sys.executable, "-c", code, storage.uri], check=False)
    with Lease(storage, 60) as lease:
        assert lease.number == 2


def test_who_finds_a_higher_lease_writes_nothing_more(storage: Storage) -> None:
    with Lease(storage, 0.2) as lease:
        leased = LeasedStorage(storage.uri, lease)
        leased.replace("a", b"1")
        foreign(storage, 9)
        time.sleep(0.2)
        writes: list[Callable[[], None]] = [
            lambda: leased.replace("a", b"2"),
            lambda: leased.create("b", b""),
            lambda: leased.upload("b", "b"),
            lambda: leased.remove("a"),
        ]
        for write in writes:
            with pytest.raises(Superseded, match="elsewhere"):
                write()
    assert storage.read("a") == b"1"
    holder = current(storage)
    assert holder is not None
    assert (holder.number, holder.released) == (9, False)
    with pytest.raises(NotHeld):
        LeasedStorage(storage.uri, None).replace("a", b"3")


def test_case_14_of_two_drivers_started_together_one_works(cluster: str, tmp_path: Path) -> None:
    """On a job that is far from done when the other gives up, however late that one starts."""
    job = job_file(tmp_path, manifest={"range": {"count": 5000, "labels": "cycle"}})
    storage = Storage(str(tmp_path / "job"))
    drivers = [start(job, "--workers", "1") for _ in range(2)]
    try:
        while all(driver.poll() is None for driver in drivers):
            time.sleep(0.1)
        drivers.sort(key=lambda driver: driver.poll() is None)
        output, status = finish(drivers[0])
        assert status == 3, output
        assert f"another driver is at work there (process {drivers[1].pid} on {socket.gethostname()}, since " in output
        wait_for_records(storage, 1, drivers[1])
        drivers[1].send_signal(signal.SIGTERM)
        output, status = finish(drivers[1])
        assert status == 143, output
    finally:
        for driver in drivers:
            driver.kill()
    assert images(storage)


def test_case_14_a_driver_stopped_past_its_lease_writes_nothing_more(cluster: str, tmp_path: Path) -> None:
    job = job_file(tmp_path, output={"lease_timeout": SHORT_S}, manifest={"range": {"count": 48, "labels": "cycle"}})
    storage = Storage(str(tmp_path / "job"))
    stopped = start(job, "--workers", "1")
    wait_for_records(storage, 1, stopped)
    stopped.send_signal(signal.SIGSTOP)
    time.sleep(SHORT_S + 1)
    result = run(job, "--workers", "1")
    assert result.exit_code == 0, result.output
    before = {path: storage.modified(path) for path in storage.list()}
    stopped.send_signal(signal.SIGCONT)
    output, status = finish(stopped)
    assert status == 3, output
    assert "another driver has taken over" in output
    after = {path: storage.modified(path) for path in storage.list()}
    # It may have been stopped in the middle of a sign of life, whose lower number no longer counts.
    after.pop("lease/0001.json", None)
    assert after == before
    assert len(hashes(storage)) == 48
