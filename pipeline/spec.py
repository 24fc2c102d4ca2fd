"""The job file: its whole schema, checked before anything is started, and the identity of the set it makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from pipeline.encoding import SETTINGS
from pipeline.errors import UsageError
from pipeline.jobfile import (
    KeyPath,
    WhereFunction,
    apply_overrides,
    describe,
    dotted,
    read_yaml,
    refuse_secrets,
    refuse_unknown,
    shown,
)

if TYPE_CHECKING:
    from specdiff.targets.base import TargetInfo

MAX_SEED = 2**63 - 1


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class TargetSpec(_Section):
    """What is sampled."""

    name: str = Field(min_length=1, description="A registered target (`specdiff targets`), a model folder or a hub id.")
    revision: str | None = Field(default=None, description="Revision of a hub id, best a commit hash.")
    steps: int | None = Field(default=None, ge=1, description="Denoising steps N; the target's own number if left out.")
    eta: float = Field(
        default=1.0, ge=0, le=1, description="DDIM's η: 1 is DDPM; 0 has no noise, and nothing to speculate on."
    )
    churn: float | None = Field(
        default=None, ge=0, description="Churn ε of a flow-matching or EDM process, in place of η."
    )
    spacing: Literal["leading", "trailing", "linspace", "karras"] | None = Field(
        default=None,
        description="How the steps are spread over the training schedule; the target's own way if left out.",
    )
    variance: Literal["fixed_small", "fixed_large"] | None = Field(
        default=None, description="Variance of a DDPM step; must be chosen for a model whose variance was learned."
    )
    dtype: Literal["float32", "bfloat16", "float16"] = Field(
        default="float32", description="Arithmetic of the network."
    )
    compile: bool = Field(default=False, description="Whether the network is compiled.")

    def settings(self) -> dict[str, Any]:
        """What is set beyond the defaults, as keyword arguments of `specdiff.load_target` and `inspect_target`."""
        return self.model_dump(exclude={"name"}, exclude_defaults=True)


class SamplerSpec(_Section):
    """How it is sampled; every choice draws from the same law, at another cost."""

    verification: Literal["none", "token", "reflection", "block"] = Field(
        default="block", description="How drafts are checked; `none` is the sequential sampler."
    )
    drafter: Literal["frozen", "free", "picard"] = Field(
        default="free", description="What a draft's prediction is made of."
    )
    gain: Literal["none", "kalman"] = Field(
        default="none", description="Correction of a reused prediction for its distance."
    )
    draft_length: int = Field(default=7, ge=1, description="Steps drafted a round, γ.")
    lanes: int = Field(default=16, ge=1, description="Images in progress at a time on each worker.")
    held: Literal["x0", "eps", "v"] = Field(
        default="x0", description="Which form of the last prediction is held constant."
    )
    reuse: Literal["rejected", "accepted"] = Field(
        default="rejected", description="Which evaluation of the last round is reused."
    )
    orthogonal: Literal["kept", "fresh"] = Field(
        default="kept", description="Orthogonal noise of a rejected draft: kept or new."
    )
    correction: Literal["residual", "transport"] = Field(
        default="residual", description="How a rejected draft is replaced."
    )
    batch_rows: int | None = Field(
        default=None,
        ge=1,
        description="Rows of each network call, padding included; lanes × (γ + 1) if left out (γ is 0 without drafts).",
    )


class RangeSpec(_Section):
    """Rows counted up instead of read from a file."""

    count: int = Field(ge=1, description="Number of rows.")
    seed: int = Field(default=0, ge=0, le=MAX_SEED, description="Seed of the first row; each next row's is one more.")
    labels: Literal["cycle"] | list[int] | None = Field(
        default=None,
        description="`cycle` takes all the target's classes in turn, a list takes those in turn; none if left out.",
    )

    @field_validator("labels", mode="before")
    @classmethod
    def _check_labels(cls, value: Any) -> Any:
        whole = isinstance(value, list) and value and all(type(each) is int and each >= 0 for each in value)
        if value is None or value == "cycle" or whole:
            return value
        raise ValueError(f"must be `cycle` or a list of class numbers, as in [0, 3]; got {shown(value)}")

    @model_validator(mode="after")
    def _check_last_seed(self) -> RangeSpec:
        if self.seed + self.count - 1 > MAX_SEED:
            raise ValueError(f"seed + count − 1 is beyond the largest seed, {MAX_SEED}")
        return self


class ManifestSpec(_Section):
    """The rows: exactly one of `path` and `range`."""

    path: str | None = Field(
        default=None,
        min_length=1,
        description="CSV (.csv), JSON Lines (.jsonl, .ndjson) or Parquet (.parquet) file, or a glob of several; local, "
        "relative to the current directory, or s3://.",
    )
    range: RangeSpec | None = Field(default=None, description="Rows counted up instead of read from a file.")
    on_bad_row: Literal["fail", "skip"] = Field(
        default="fail",
        description="Whether bad rows stop the job before it starts, or are listed as failures and left out.",
    )
    images_per_row: int = Field(
        default=1,
        ge=1,
        description="Images of each row; their keys end in -0, -1, …, their seeds derive from the row's.",
    )

    @model_validator(mode="after")
    def _check_one_source(self) -> ManifestSpec:
        if (self.path is None) == (self.range is None):
            raise ValueError("needs exactly one of `path` (a file or glob) and `range` (rows counted up)")
        return self


class OutputSpec(_Section):
    """Where the images go, and in what form."""

    uri: str = Field(min_length=1, description="Output folder: local, relative to the current directory, or s3://.")
    image_format: Literal["png", "jpeg", "webp"] = Field(default="png", description="Encoding of the images.")
    shard_size: int = Field(
        default=256, ge=1, description="Rows of a data file, the unit of work and of what a crash may cost."
    )
    lease_timeout: float = Field(
        default=120.0,
        gt=0,
        description="Seconds without a sign of life after which another driver may take the output over.",
    )
    overwrite: bool = Field(default=False, description="Whether a data set that is there already is removed first.")


class WorkersSpec(_Section):
    """Who does the work."""

    count: int = Field(default=1, ge=1, description="Workers, each with a device of its own.")
    gpus: float | None = Field(
        default=None, ge=0, description="GPUs of each worker; 1 where the cluster has any and 0 elsewhere, if left out."
    )
    threads: int = Field(default=1, ge=1, description="CPU threads of each worker.")
    min: int | None = Field(default=None, ge=1, description="Fewest workers to go on with.")
    max: int | None = Field(default=None, ge=1, description="Most workers to use as they become available.")
    max_attempts: int = Field(default=3, ge=1, description="Times that a shard is tried before it counts as failed.")
    max_hours: float | None = Field(default=None, gt=0, description="Hours after which no further shard is begun.")

    @model_validator(mode="after")
    def _check_order(self) -> WorkersSpec:
        if not (self.min or 1) <= self.count <= (self.max or self.count):
            raise ValueError(f"needs min ≤ count ≤ max; got min {self.min}, count {self.count}, max {self.max}")
        return self


class EvaluateSpec(_Section):
    """What is measured of the finished set."""

    metrics: list[Literal["fid", "inception_score", "kid", "precision_recall"]] = Field(
        default=["fid"], min_length=1, description="Metrics to compute."
    )
    extractor: str = Field(default="inception-v3-compat", min_length=1, description="Feature extractor, by name.")
    reference: str = Field(
        min_length=1, description="What the set is compared with: a registered name, a folder, Parquet, or an npz file."
    )
    weights: str | None = Field(
        default=None, min_length=1, description="File with the extractor's weights; its own if left out."
    )
    partial: bool = Field(default=False, description="Whether an incomplete set is measured too.")


class ScheduleSpec(_Section):
    """When the job is run by itself."""

    cron: str = Field(min_length=1, description="Times to run at, in cron's notation, UTC.")
    missed: Literal["catch_up", "skip"] = Field(default="skip", description="What is done about a run that was missed.")
    unfinished: Literal["continue", "leave"] = Field(
        default="continue", description="What is done about the last run if it is not finished."
    )
    advance_seeds: bool = Field(default=False, description="Whether each run takes seeds that no earlier one took.")
    keep: int | None = Field(default=None, ge=1, description="Number of past sets to keep; all if left out.")
    notify: str | None = Field(default=None, min_length=1, description="Command to run on success and on failure.")


class Job(_Section):
    """One data set: what is sampled, for which rows, to where, by whom, and how it is judged."""

    name: str = Field(min_length=1, description="What reports and progress call the job.")
    target: TargetSpec
    sampler: SamplerSpec = Field(default_factory=SamplerSpec)
    manifest: ManifestSpec
    output: OutputSpec
    workers: WorkersSpec = Field(default_factory=WorkersSpec)
    evaluate: EvaluateSpec | None = Field(default=None, description="What is measured of the set; nothing if left out.")
    schedule: ScheduleSpec | None = Field(
        default=None, description="When the job is run by itself; only on demand if left out."
    )


# Setting → the values that work today. Settings that are not here work in full.
BUILT: Mapping[str, tuple[Any, ...]] = {
    "target.revision": (None,),
    "target.churn": (None,),
    "target.spacing": (None,),
    "target.variance": (None,),
    "target.dtype": ("float32",),
    "target.compile": (False,),
    "schedule": (None,),
}


def load_job(path: str, overrides: Sequence[str] = ()) -> Job:
    """The checked job of a YAML file, with each `a.b=value` of `overrides` put in.

    Raises UsageError, in words, for everything that is wrong with it: unreadable, not YAML, repeated or unknown keys,
    values out of range, secrets, and settings that are not built yet.
    """
    data, lines = read_yaml(path)
    # Overrides are looked at like the file: a key of theirs has no line.
    overridden = {tuple(each.partition("=")[0].strip().split(".")) for each in overrides}

    def where(at: KeyPath) -> str:
        place = f"{dotted(at)}" if at else "the job"
        if any(at[: len(keys)] == keys for keys in overridden):
            return f"--set {place}"
        known = next((at[:length] for length in range(len(at), 0, -1) if at[:length] in lines), None)
        return f"{path}:{lines[known]}: {place}" if known else f"{path}: {place}"

    refuse_secrets(data, where)
    refuse_unknown(data, Job, where)
    data = apply_overrides(data, overrides, Job)
    refuse_secrets(data, where)
    try:
        job = Job.model_validate(data)
    except ValidationError as error:
        raise UsageError(describe(error, where)) from error
    _refuse_unbuilt(job, where)
    return job


def _refuse_unbuilt(job: Job, where: WhereFunction) -> None:
    found = [(setting, _unbuilt(job, setting)) for setting in BUILT]
    if "/" in job.target.name or job.target.name.startswith("."):
        found.append(("target.name", "model folders and hub ids are not built yet; see `specdiff targets`"))
    problems = [f"{where(tuple(setting.split('.')))}: {reason}" for setting, reason in found if reason]
    if problems:
        raise UsageError("\n".join(problems))


def _unbuilt(job: Job, setting: str) -> str:
    """Why a setting's value is refused, or ''."""
    value: Any = job
    for key in setting.split("."):
        value = None if value is None else getattr(value, key)
    chosen = value if isinstance(value, list) else [value]
    built = BUILT[setting]
    refused = [each for each in chosen if each not in built and each is not None]
    if not refused:
        return ""
    if built == (None,):
        return "not built yet; leave it out"
    return f"{shown(refused[0])} is not built yet; what is: {', '.join(shown(each) for each in built)}"


def identity(job: Job, info: TargetInfo, batch_rows: int, manifest_digest: str) -> dict[str, Any]:
    """What decides the bytes of the set, as plain JSON values; workers, limits, name and evaluation may change freely.

    Lanes are left out: they change nothing at equal `batch_rows`, the resolved number of rows of a network call.
    """
    target = job.target.model_dump(mode="json") | {"steps": info.steps, "weights_sha256": info.weights_sha256}
    sampler = job.sampler.model_dump(mode="json", exclude={"lanes"}) | {"batch_rows": batch_rows}
    if job.sampler.gain == "kalman":
        sampler["gain_sha256"] = info.gain_sha256
    output = job.output.model_dump(mode="json", include={"image_format", "shard_size"})
    output["encoder"] = SETTINGS[job.output.image_format]
    return {"target": target, "sampler": sampler, "output": output, "manifest": {"digest": manifest_digest}}


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What two identities do not share, as "sampler.draft_length: 7 there, 5 here".

    The manifest is left out: a longer one may extend the set, and `manifest.normalise` decides that row by row.
    """
    there, here = _flat(old), _flat(new)
    paths = sorted(path for path in there.keys() | here.keys() if path[0] != "manifest")
    return [
        f"{dotted(path)}: {_told(there, path)} there, {_told(here, path)} here"
        for path in paths
        if there.get(path) != here.get(path)
    ]


def _flat(nested: Mapping[str, Any], at: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    flat: dict[tuple[str, ...], Any] = {}
    for key, value in nested.items():
        flat |= _flat(value, (*at, key)) if isinstance(value, Mapping) else {(*at, key): value}
    return flat


def _told(flat: Mapping[tuple[str, ...], Any], path: tuple[str, ...]) -> str:
    return "nothing" if flat.get(path) is None else str(flat[path])
