"""The job file: its whole schema, checked before anything is started, and the identity of the set it makes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from pipeline import cron, dated_job
from pipeline.encoding import SETTINGS
from pipeline.errors import UsageError
from pipeline.jobfile import (
    KeyPath,
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
    null_class: bool = Field(
        default=False,
        description="Whether the last class of a class-conditional UNet2DModel stands for no class; its configuration "
        "does not say.",
    )

    @field_validator("name")
    @classmethod
    def _from_the_root(cls, value: str) -> str:
        """A model folder's whole path, which workers understand wherever they run."""
        folder = Path(value).expanduser()
        return str(folder.resolve()) if (folder / "model_index.json").is_file() else value

    def settings(self) -> dict[str, Any]:
        """What is set beyond the defaults, as keyword arguments of `specdiff.load_target` and `inspect_target`."""
        return self.model_dump(exclude={"name"}, exclude_defaults=True)


class SamplerSpec(_Section):
    """How it is sampled; every choice draws from the same law, at another cost."""

    verification: Literal["none", "token", "reflection", "block", "auto"] = Field(
        default="block",
        description="How drafts are checked; `none` is the sequential sampler; `auto` asks a pilot, once for a set, "
        "whether drafts are kept, and is `none` where hardly any are.",
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

    @property
    def rule(self) -> str:
        """The verification, or for `auto` the one that it is where speculation pays."""
        if self.verification != "auto":
            return self.verification
        return "reflection" if self.drafter == "picard" else "block"

    def settings(self) -> dict[str, Any]:
        """Keyword arguments of `specdiff.Sampler`."""
        return self.model_dump() | {"verification": self.rule}


class RangeSpec(_Section):
    """Rows counted up instead of read from a file."""

    count: int = Field(ge=1, description="Number of rows.")
    seed: int = Field(default=0, ge=0, le=MAX_SEED, description="Seed of the first row; each next row's is one more.")
    labels: Literal["cycle"] | list[int] | None = Field(
        default=None,
        description="`cycle` takes all the target's classes in turn, a list takes those in turn; none if left out.",
    )
    guidance_scale: float | None = Field(
        default=None, ge=0, description="Guidance scale of every row; no guidance if left out."
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
        "relative to the current directory, or s3://; with a schedule it may tell the run's date as output.uri does.",
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

    uri: str = Field(
        min_length=1,
        description="Output folder: local, relative to the current directory, or s3://. With a "
        "schedule it tells the run's date (UTC), by {date}, {datetime}, {year}, {month}, {day}, {hour}, {minute}.",
    )
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
            given = {name: getattr(self, name) for name in ("min", "count", "max")}
            told = ", ".join(f"{name} {value}" for name, value in given.items() if value is not None)
            raise ValueError(f"needs min ≤ count ≤ max; got {told}")
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


class NotifySpec(_Section):
    """Who is told how a scheduled run ended."""

    command: str | None = Field(
        default=None,
        min_length=1,
        description="Shell command; it gets the message as JSON on standard input. Secrets it takes from the "
        "environment.",
    )
    webhook_env: str | None = Field(
        default=None,
        min_length=1,
        description="Name of the environment variable that holds the address to which the message is posted as JSON; "
        "its `text` is what chat services show.",
    )
    events: list[Literal["success", "failure"]] = Field(
        default=["success", "failure"], min_length=1, description="Which ends are told."
    )
    timeout: float = Field(default=30.0, gt=0, le=600, description="Seconds after which telling is given up.")

    @model_validator(mode="after")
    def _check(self) -> NotifySpec:
        if self.command is None and self.webhook_env is None:
            raise ValueError("needs `command` or `webhook_env`")
        if self.webhook_env is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.webhook_env):
            # Not repeated: it may be the address, and that is a secret.
            raise ValueError("`webhook_env` is the name of an environment variable that holds the address, as in HOOK")
        if self.command is not None and _SECRET_IN_COMMAND.search(self.command):
            raise ValueError(
                "`command` must not hold addresses or secrets; take them from the environment, as in "
                'curl --data @- "$HOOK"'
            )
        return self


# An address, or what follows a word such as `token` and is not taken from a variable.
_SECRET_IN_COMMAND = re.compile(
    r"""://|\b(bearer|token|passw(or)?d|secret|api[-_]?key)['"]?[ =:]+['"]?(?![$'"\s])""", re.IGNORECASE
)


class ScheduleSpec(_Section):
    """When the job is run by itself, each run with a set of its own."""

    cron: str = Field(
        min_length=1,
        description="Times to run at, UTC: minute, hour, day of month, month, day of week, as in 0 2 * * *.",
    )
    missed: Literal["catch_up", "skip"] = Field(
        default="skip", description="Whether runs that were missed are made later; the newest that is due always is."
    )
    unfinished: Literal["continue", "leave"] = Field(
        default="continue", description="Whether earlier runs that are not finished are gone on with."
    )
    advance_seeds: bool = Field(
        default=False, description="Whether each run takes seeds that no other takes; for a manifest.range."
    )
    keep: int | None = Field(
        default=None,
        ge=1,
        description="Number of finished sets to keep, the newest; older ones of this job are removed. All if left out.",
    )
    notify: NotifySpec | None = Field(default=None, description="Who is told how a run ended; nobody if left out.")

    @field_validator("cron")
    @classmethod
    def _check_cron(cls, value: str) -> str:
        if reason := cron.problem(value):
            raise ValueError(reason)
        return value


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


def load_job(path: str, overrides: Sequence[str] = ()) -> Job:
    """The checked job of a YAML file, with each `a.b=value` of `overrides` put in.

    Raises UsageError, in words, for everything that is wrong with it: unreadable, not YAML, repeated or unknown keys,
    values out of range, secrets, and run dates that do not fit the schedule.
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
    if wrong := [f"{where(tuple(setting.split('.')))}: {reason}" for setting, reason in dated_job.problems(job)]:
        raise UsageError("\n".join(wrong))
    return job


def identity(job: Job, info: TargetInfo, batch_rows: int, manifest_digest: str) -> dict[str, Any]:
    """What decides the bytes of the set, as plain JSON values; workers, limits, name and evaluation may change freely.

    Lanes are left out: they change nothing at equal `batch_rows`, the resolved number of rows of a network call.
    """
    target = job.target.model_dump(mode="json") | {"steps": info.steps, "weights_sha256": info.weights_sha256}
    if info.config_sha256 is not None:  # the hashes say which model it is, wherever it lies
        target |= {"name": None, "revision": None, "config_sha256": info.config_sha256}
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
