"""The output folder: `job.json`, which says whose set it holds, and the removal of a set."""

from __future__ import annotations

import json
import re
from datetime import datetime, timezone
from typing import Any

from pipeline.damage import reading
from pipeline.errors import UsageError
from pipeline.software import software
from pipeline.spec import Job, differences
from pipeline.storage import Storage
from specdiff import TargetInfo

FORMAT = 1
JOB = "job.json"

# Everything that a run writes, records first: what is left of a removal that was cut short then claims nothing.
_OURS = (
    re.compile(r"commits/part-\d{5,}(\.r\d+)?\.json"),
    re.compile(r"data/part-\d{5,}(\.r\d+)?(\.a\d+)?\.parquet"),
    re.compile(r"report/(report\.json|report\.html|[a-z_]+\.png)"),
    re.compile(r"report/features/(part|reference)-[a-z0-9.-]+\.npz"),
    re.compile(r"failures\.jsonl"),
    re.compile(r"manifest/part-\d{5,}\.parquet"),
    re.compile(r"manifest\.json"),
    re.compile(r"job\.json"),
)


def is_ours(path: str) -> bool:
    """Whether a run of ours would have written a file."""
    return any(pattern.fullmatch(path) for pattern in _OURS)


def remove_set(storage: Storage) -> None:
    """Removes the data set; files that no run of ours would have written stay."""
    paths = storage.list()
    for pattern in _OURS:
        for path in paths:
            if pattern.fullmatch(path):
                storage.remove(path)


def read_job(storage: Storage) -> tuple[Job, int]:
    """The job that made the set, and its rows. Raises UsageError where there is none, PipelineError for half of one."""
    document = read_document(storage)
    if document is None:
        raise UsageError(f"{storage.uri}: there is no {JOB}, so this is not a data set of `specdiff run`")
    with reading(storage, JOB):
        return Job.model_validate(document["job"]), int(document["manifest"]["rows"])


def stored_batch_rows(storage: Storage) -> int | None:
    """The rows of every network call by which the set that is there is made, or None where there is none."""
    document = read_document(storage)
    if document is None:
        return None
    with reading(storage, JOB):
        return int(document["identity"]["sampler"]["batch_rows"])


def stored_verification(storage: Storage) -> str | None:
    """The verification by which the set that is there is made, or None where there is none."""
    document = read_document(storage)
    if document is None:
        return None
    with reading(storage, JOB):
        return str(document["identity"]["sampler"]["verification"])


def check_same_set(storage: Storage, identity: dict[str, Any]) -> None:
    """Refuses an output that holds another set.

    Raises:
        UsageError: settings that decide the set differ, each named; or there is data that nobody can vouch for.
    """
    document = read_document(storage)
    if document is None:
        if storage.list("commits/"):
            raise UsageError(f"{storage.uri}: there are commit records but no {JOB}; choose another output")
        return
    with reading(storage, JOB):
        found = differences(document["identity"], identity)
    if found:
        listed = "\n".join(f"  {each}" for each in found)
        raise UsageError(
            f"{storage.uri} holds a data set made with other settings:\n{listed}\n"
            "Choose another output, restore the settings, or set output.overwrite to replace it."
        )


def write_job(storage: Storage, job: Job, info: TargetInfo, identity: dict[str, Any], manifest: dict[str, Any]) -> None:
    """Writes `job.json`, unless it says the same already.

    Args:
        identity: what decides the bytes of the set (`spec.identity`).
        manifest: its counts.
    """
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    document = {
        "format": FORMAT,
        "identity": identity,
        "job": job.model_dump(mode="json"),
        "manifest": manifest,
        "target": {
            "shape": list(info.shape),
            "licence": info.licence,
            "weights_sha256": info.weights_sha256,
            "revision": info.revision,
        },
        "software": software(),
    }
    old = read_document(storage)
    times = ("created", "changed")
    if old is not None and {key: value for key, value in old.items() if key not in times} == document:
        return
    document |= {"created": old["created"] if old else now, "changed": now}
    storage.replace(JOB, json.dumps(document, indent=2, ensure_ascii=False).encode() + b"\n")


def read_document(storage: Storage) -> dict[str, Any] | None:
    """`job.json`, or None where there is none. Raises PipelineError for one that cannot be read, UsageError for one of
    another format."""
    try:
        data = storage.read(JOB)
    except FileNotFoundError:
        return None
    with reading(storage, JOB):
        document: dict[str, Any] = json.loads(data)
        if document["format"] != FORMAT:
            raise UsageError(f"{storage.uri}/{JOB}: not of format {FORMAT}; use the version of specdiff that wrote it")
    return document
