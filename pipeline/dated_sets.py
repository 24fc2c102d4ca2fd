"""The data sets that earlier runs of a schedule have left: found with their states, and removed when their time is."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from pipeline.clean import TEMPORARY
from pipeline.dated_job import resolved
from pipeline.dates import folders
from pipeline.lease import Lease, LeasedStorage, remove_leases
from pipeline.output import JOB, is_ours, remove_set
from pipeline.report import REPORT
from pipeline.schedule import State
from pipeline.spec import Job
from pipeline.storage import Storage


def find(job: Job) -> dict[datetime, State]:
    """The sets whose folders the output's name fits, by run: finished, if the report accounts for every row.

    Raises Unavailable where the storage is out of reach.
    """
    storage, found = folders(job.output.uri)
    job_files = storage.read_present([f"{path}/{JOB}" for path in found.values()])
    reports = storage.read_present([f"{path}/{REPORT}" for path in found.values()])
    return {
        run: _state(job, job_files[f"{path}/{JOB}"], reports.get(f"{path}/{REPORT}", b"{}"))
        for run, path in found.items()
        if f"{path}/{JOB}" in job_files
    }


def _state(job: Job, job_file: bytes, report: bytes) -> State:
    """Only a set that says by itself that a schedule of this name made it is the schedule's."""
    try:
        document = json.loads(job_file)
        if document["job"]["name"] != job.name or document["job"]["schedule"] is None:
            return "foreign"
        rows = document["manifest"]["rows"]
    except (LookupError, TypeError, ValueError):
        return "foreign"
    try:
        return "finished" if _accounted(json.loads(report)) == rows else "unfinished"
    except (LookupError, TypeError, ValueError):
        return "unfinished"


def _accounted(report: dict[str, Any]) -> int:
    failures = report["failures"]
    return int(report["images"] + failures["failed"] + failures["skipped"])


def remove(job: Job, runs: Iterable[datetime]) -> Iterator[str]:
    """Removes the sets of runs, but no file that a run of ours would not have written. Yields the output of each.

    Raises:
        Held: a driver is at work on a set.
        Unavailable: the storage is out of reach.
    """
    for run in runs:
        output = resolved(job, run).output
        storage = Storage(output.uri)
        with Lease(storage, output.lease_timeout) as lease:
            leased = LeasedStorage(output.uri, lease)
            leased.remove_unfinished(lambda path: TEMPORARY.fullmatch(path) or is_ours(path))
            remove_set(leased)
        remove_leases(storage)
        storage.remove_empty_folders()
        yield storage.uri
