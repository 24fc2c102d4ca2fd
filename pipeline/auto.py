"""`sampler.verification: auto`, decided once for a set: by what its output says, or by a pilot on a device."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from pipeline.errors import Unavailable
from pipeline.manifest import normalise, read_rows, to_requests
from pipeline.output import stored_verification
from pipeline.scratch import scratch_folder
from pipeline.signals import Signals
from pipeline.spec import Job
from pipeline.storage import Storage
from specdiff import Request, TargetInfo
from specdiff.pilots import IMAGES, Pilot, pilot

PATIENCE_S = 900.0  # for a device
WINDOW = 1000  # rows looked at together


def decided(job: Job, info: TargetInfo, storage: Storage, signals: Signals, say: Callable[[str], None]) -> Job:
    """The job with `auto` replaced by what it means for this set, which `job.json` then holds.

    A pilot samples the first rows' labels with random numbers of its own, so that the choice depends on the settings
    alone and on no image of the set. A set that is there goes on as it was begun.

    Raises:
        UsageError: the manifest is wrong, or has no good row.
        Unavailable: there is no device for the pilot, or it failed.
    """
    if job.sampler.verification != "auto":
        return job
    chosen = None if job.output.overwrite else stored_verification(storage)
    if chosen is None:
        requests = first_requests(job, info, IMAGES)
        found = _on_a_device(job, requests, signals) if requests else None
        chosen = job.sampler.rule if found is None else found.verification
        if found is not None:
            kept, speedup = found.stats.acceptance or 0.0, found.stats.sequential_speedup or 0.0
            say(f"verification   auto is `{chosen}`: a pilot kept {kept:.0%} of drafts, {speedup:.2f} steps a call")
    return job.model_copy(update={"sampler": job.sampler.model_copy(update={"verification": chosen})})


def first_requests(job: Job, info: TargetInfo, count: int) -> list[Request]:
    """Up to `count` of the first good rows of the job's manifest. Raises UsageError where that is wrong."""
    with scratch_folder() as folder:
        storage = Storage(folder)
        rows, found = normalise(job, info, storage).rows, list[Request]()
        for first in range(0, rows, WINDOW):  # what is held does not grow with the rows
            found += [request for _, request in to_requests(read_rows(storage, first, min(WINDOW, rows - first)))]
            if len(found) >= count:
                break
        return found[:count]


def _on_a_device(job: Job, requests: list[Request], signals: Signals) -> Pilot:
    # Imported only here: a set that is there is gone on with without Ray, where nothing is to be made.
    with signals.held():
        import ray
        from ray.exceptions import RayError

        from pipeline.cluster import check_machine, connected, death, gpus_per_worker

    with signals.held(), connected() as started:
        signals.install()
        signals.check()
        gpus = gpus_per_worker(job.workers.gpus)
        if started:
            check_machine(job.workers.threads, gpus)
        task: Any = ray.remote(_pilot).options(num_cpus=job.workers.threads, num_gpus=gpus, max_retries=0)
        answer, began = task.remote(job, requests, "cuda:0" if gpus else "cpu"), time.monotonic()
        while not ray.wait([answer], timeout=1.0)[0]:
            signals.check()
            if time.monotonic() - began > PATIENCE_S:
                raise Unavailable("no device became free for the pilot of sampler.verification: auto")
        try:
            found: Pilot = ray.get(answer)
        except RayError as error:
            raise Unavailable(f"the pilot of sampler.verification: auto failed: {death(error)}") from error
        return found


def _pilot(job: Job, requests: list[Request], device: str) -> Pilot:
    """On a worker."""
    import torch

    import specdiff

    torch.set_num_threads(job.workers.threads)
    target = specdiff.load_target(job.target.name, device=device, **job.target.settings())
    settings = job.sampler.model_dump(exclude={"verification"})
    return pilot(target, requests, verification=job.sampler.rule, **settings)
