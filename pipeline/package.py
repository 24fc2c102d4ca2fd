"""What is sent along with a job to a cluster: its job file and its manifest, and nothing secret."""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import yaml

from pipeline.dates import placeholders
from pipeline.errors import UsageError
from pipeline.sources import find_files
from pipeline.spec import Job

JOB_FILE = "job.yaml"
_MANIFEST = "manifest"
MOST_BYTES = 100 << 20  # of a manifest that is sent along; Ray keeps it in the memory of its head


def pack(job: Job, folder: str) -> None:
    """Writes the job file to a local folder and, if its manifest is local, copies that too and has the job name it.

    Raises:
        UsageError: the job names something that would not be there on the cluster, or the manifest is too large.
        Unavailable: the manifest's files cannot be read.
    """
    if wrong := list(_not_there(job)):
        raise UsageError("\n".join(wrong))
    if job.manifest.path is not None and "://" not in job.manifest.path.removeprefix("file://"):
        path = _pack_manifest(job.manifest.path, folder)
        job = job.model_copy(update={"manifest": job.manifest.model_copy(update={"path": path})})
    settings = job.model_dump(mode="json", exclude_defaults=True)
    Path(folder, JOB_FILE).write_text(yaml.safe_dump(settings, sort_keys=False, allow_unicode=True))


def _not_there(job: Job) -> Iterator[str]:
    """What the job names that only this machine has."""
    if "://" not in job.output.uri and not os.path.isabs(job.output.uri):
        yield (
            f"output.uri: {job.output.uri} would be lost with the job's working folder on the cluster; give an s3:// "
            "URI, or the absolute path of a folder that all its machines share"
        )
    evaluation = job.evaluate
    files = {
        "target.name": job.target.name,
        "evaluate.reference": evaluation and evaluation.reference,
        "evaluate.weights": evaluation and evaluation.weights,
    }
    for setting, path in files.items():
        # Hub ids and registered names are no files here, unless something of that name lies in this very folder.
        if path and "://" not in path and not os.path.isabs(path) and glob.glob(path):
            yield (
                f"{setting}: {path} is not sent along; give the absolute path of one that all machines of the cluster "
                "share, or an s3:// URI where the setting takes one"
            )
    if "://" not in (job.manifest.path or "://") and placeholders(job.manifest.path or ""):
        yield "manifest.path: a local file by the run's date is not sent along; give an s3:// URI"


def _pack_manifest(path: str, folder: str) -> str:
    """Copies the manifest's files, and returns how the job names them from the folder on."""
    root, names = find_files(path)
    size = sum(os.path.getsize(os.path.join(root, name)) for name in names)
    if size > MOST_BYTES:
        raise UsageError(
            f"manifest.path: {path} has {size >> 20} MiB, and at most {MOST_BYTES >> 20} are sent along; put it into S3"
        )
    os.mkdir(os.path.join(folder, _MANIFEST))
    packed = [
        f"{_MANIFEST}/{number:05d}{os.path.splitext(name)[1]}"  # so that they keep their order
        for number, name in enumerate(names)
    ]
    for name, copy in zip(names, packed, strict=True):
        shutil.copyfile(os.path.join(root, name), os.path.join(folder, copy))
    return packed[0] if len(packed) == 1 else f"{_MANIFEST}/*"
