"""`specdiff bench`: what the job file says, handed to the sampler's own bench, and the results in a folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import specdiff
from pipeline.auto import first_requests
from pipeline.errors import UsageError
from pipeline.extractors import load_extractor
from pipeline.features import BATCH
from pipeline.moments import Moments, frechet
from pipeline.references import check_dimensions, load_reference
from pipeline.run import checked
from pipeline.spec import EvaluateSpec, Job
from specdiff.bench import Entry, entries, measure
from specdiff.bench_report import draw, table
from specdiff.claims import Checks, claims_table
from specdiff.requests import Request
from specdiff.targets.base import TargetInfo

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor


class Fid:
    """FID as the job's `evaluate` section wants it, for the bench's quality column."""

    name = "FID"

    def __init__(self, settings: EvaluateSpec, device: str) -> None:
        self._extractor = load_extractor(settings.extractor, settings.weights, device)
        self._reference = load_reference(settings.reference, self._extractor, ["fid"])

    def features(self, images: NDArray[np.uint8]) -> Tensor:
        rows = torch.from_numpy(images).permute(0, 3, 1, 2).expand(-1, 3, -1, -1)
        layer = self._extractor.feature_layer
        return torch.cat([self._extractor(batch)[layer] for batch in rows.split(BATCH)])

    def score(self, features: Tensor) -> float:
        ours = Moments.of(features.numpy()).gaussian()
        check_dimensions(self._reference, ours.dimensions, self._extractor)
        return frechet(ours, self._reference.gaussian)


def bench(
    job: Job,
    folder: Path,
    *,
    claims: bool,
    images: int,
    repeats: int,
    turn: float,
    draft_lengths: Sequence[int],
    say: Callable[[str], None],
) -> int:
    """Measures the job's target and writes table, JSON and pictures, or checks the paper's claims.

    Args:
        folder: where the results go; made where it is not there.
        images: counted for each sampler (for claims, at the fewest steps).
        repeats, turn: turns by the clock, and the least seconds of each.
        draft_lengths: γ of the samplers that are compared, besides the job's own.

    Returns:
        Exit status: 1 where a claim about what is drawn does not hold.

    Raises:
        UsageError: the job is wrong, or has too few rows.
    """
    info, _ = checked(job)
    torch.set_num_threads(job.workers.threads)
    device = "cuda" if torch.cuda.is_available() and job.workers.gpus != 0 else "cpu"
    settings = {name: value for name, value in job.target.settings().items() if name != "steps"}
    load = partial(_load, job.target.name, device, settings)
    quality = None if job.evaluate is None else Fid(job.evaluate, device)
    requests = _requests(job, info, 2 * images if claims else images)
    folder.mkdir(parents=True, exist_ok=True)
    common: dict[str, Any] = {"quality": quality, "say": say}
    if claims:
        try:
            checks = Checks(
                load, requests, steps=info.steps, draft_length=job.sampler.draft_length, images=images, **common
            )
        except ValueError as error:
            raise UsageError(str(error)) from error
        report = {"format": 1, "job": job.name, "target": job.target.name, **checks.run()}
        name, text = "claims", claims_table(report)
    else:
        compared = _compared(job, info.steps, draft_lengths)
        measured = measure(load, compared, requests, lanes=job.sampler.lanes, repeats=repeats, turn=turn, **common)
        report = {"format": 1, "job": job.name, "target": job.target.name, **measured}
        name, text = "bench", table(report)
        draw(report, folder)
    (folder / f"{name}.json").write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    (folder / f"{name}.txt").write_text(text + "\n")
    say(text)
    say(f"written to {folder}")
    return int(claims and any(claim["law"] and claim["holds"] is False for claim in report["claims"]))


def _compared(job: Job, steps: int, draft_lengths: Sequence[int]) -> list[Entry]:
    """The samplers that are always compared, with what the job reuses, and the job's own where it is none of them."""
    own = job.sampler
    lengths = [own.draft_length, *(each for each in draft_lengths if each != own.draft_length)]
    found = entries(steps, lengths, **own.model_dump(include={"held", "reuse", "orthogonal"}))
    if own.drafter == "picard" or own.gain != "none" or own.correction != "residual":
        parts = [own.rule, own.drafter, own.gain, own.correction]
        name = ", ".join(part for part in parts if part not in ("none", "residual"))
        settings = {name: value for name, value in own.settings().items() if name not in ("lanes", "batch_rows")}
        found.append(Entry(f"{name}, γ = {own.draft_length}", steps, settings))
    return found


def _load(name: str, device: str, settings: dict[str, Any], *, steps: int, **more: Any) -> specdiff.Target:
    return specdiff.load_target(name, device=device, **settings | {"steps": steps} | more)


def _requests(job: Job, info: TargetInfo, count: int) -> list[Request]:
    """The first good rows of the job's manifest."""
    found = first_requests(job, info, count)
    if len(found) < count:
        raise UsageError(f"manifest: {len(found)} good rows, and this needs {count}; name fewer images, or more rows")
    return found
