"""From a scheduler's JSON to the steps of a sampler, and to what is done with the network's output on the way."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from specdiff import schedules
from specdiff.targets.diffusers.folder import Config
from specdiff.transitions import Transitions

DDIM_STEPS = 250
SCHEDULERS = ("DDPMScheduler", "DDIMScheduler")
LEARNED = ("learned", "learned_range")
DEFAULTS: Config = {
    "num_train_timesteps": 1000,
    "beta_start": 1e-4,
    "beta_end": 0.02,
    "beta_schedule": "linear",
    "trained_betas": None,
    "variance_type": "fixed_small",
    "clip_sample": True,
    "clip_sample_range": 1.0,
    "prediction_type": "epsilon",
    "thresholding": False,
    "dynamic_thresholding_ratio": 0.995,
    "sample_max_value": 1.0,
    "timestep_spacing": "leading",
    "steps_offset": 0,
    "rescale_betas_zero_snr": False,
    "set_alpha_to_one": True,
}
"""What both of diffusers' schedulers take a key for that is not there."""
NUMBERS = tuple(
    key for key, value in DEFAULTS.items() if isinstance(value, (int, float)) and not isinstance(value, bool)
)


@dataclass(frozen=True)
class Process:
    """The sampler's steps, and the network's output on its way to x̂; float32 tables [N] on one device.

    Attributes:
        transitions: float64, on the CPU.
        timesteps: what the network is told, int64 where they are whole and float32 elsewhere.
        of_state, of_output: x̂ = of_state y + of_output output, before it is bounded.
        bound: x̂ is clipped to ±bound; None where it is not.
        threshold: ratio and largest value of dynamic thresholding, which replaces clipping; None where there is none.
    """

    transitions: Transitions
    timesteps: Tensor
    of_state: Tensor
    of_output: Tensor
    bound: float | None
    threshold: tuple[float, float] | None

    def to(self, device: str) -> Process:
        """The same with its tables on a device."""
        return replace(
            self,
            timesteps=self.timesteps.to(device),
            of_state=self.of_state.to(device),
            of_output=self.of_output.to(device),
        )

    def clean(self, output: Tensor, state: Tensor, step: Tensor) -> Tensor:
        """x̂ of a network's output: output and state float32 [rows, *shape], step int64 [rows]."""
        ones = (1,) * (state.dim() - 1)
        of_state, of_output = (table[step].view(-1, *ones) for table in (self.of_state, self.of_output))
        clean = of_state * state + of_output * output
        if self.threshold is not None:
            return thresholded(clean, *self.threshold)
        return clean if self.bound is None else clean.clamp(-self.bound, self.bound)


def thresholded(clean: Tensor, ratio: float, largest: float) -> Tensor:
    """Dynamic thresholding (Saharia et al., arXiv 2205.11487, section 2.3) as diffusers has it, each row by itself.

    The bound is a quantile of |x̂|, interpolated, at least 1 and at most ``largest``; the row is clipped there, and
    divided by it.

    Args:
        clean: float32 [rows, *shape].
        ratio: of the quantile, 0 … 1.
        largest: bound of the quantile.

    Returns:
        float32 [rows, *shape], in −1 … 1.
    """
    size = clean[0].numel()
    position = ratio * (size - 1)
    below = int(position)
    top = clean.abs().flatten(1).topk(size - below, dim=1).values  # largest first; the last is the quantile's floor
    floor, ceiling = top[:, -1], top[:, -2 if below + 1 < size else -1]
    bound = (floor + (position - below) * (ceiling - floor)).clamp(1, largest).view(-1, *(1,) * (clean.dim() - 1))
    return torch.minimum(torch.maximum(clean, -bound), bound) / bound


def process(
    config: Config,
    *,
    steps: int | None = None,
    eta: float = 1.0,
    spacing: str | None = None,
    variance: str | None = None,
    learned: bool = False,
) -> Process:
    """The process that a scheduler's configuration and a user's settings make.

    A DDPMScheduler steps as DDPM does with its ``variance_type``, and with η < 1 as DDIM; a DDIMScheduler as DDIM. A
    clipped or thresholded prediction is used for the noise, too, as with diffusers' ``use_clipped_model_output=True``,
    which is an argument of its calls and stands in no configuration.

    Args:
        config: of ``scheduler_config.json``; keys that are not there are as in diffusers.
        steps: N; the training schedule's own for a DDPMScheduler, at most 250 for a DDIMScheduler, where left out.
        eta: share of ancestral noise, 0 … 1.
        spacing: in place of the configuration's ``timestep_spacing``.
        variance: ``fixed_small`` or ``fixed_large`` in place of the configuration's ``variance_type``.
        learned: whether the network has outputs for a variance.

    Raises:
        ValueError: what cannot be sampled exactly, by its name and with the remedy; a setting out of range.
    """
    name = config.get("_class_name")
    if name not in SCHEDULERS:
        raise ValueError(
            f"scheduler {name} cannot be sampled exactly here, only DDPMScheduler and DDIMScheduler can; save the "
            "pipeline with one of them, as in pipe.scheduler = DDPMScheduler.from_config(pipe.scheduler.config)"
        )
    read = DEFAULTS | config
    _check_numbers(read)
    is_ddpm = name == "DDPMScheduler"
    kind = _variance(str(read["variance_type"]) if is_ddpm else "fixed_small", variance, learned, eta)
    spacing = spacing or str(read["timestep_spacing"])
    train_steps = int(read["num_train_timesteps"])
    alpha_bar = _alpha_bar(read)
    if len(alpha_bar) != train_steps:
        raise ValueError(f"trained_betas are {len(alpha_bar)}, and num_train_timesteps is {train_steps}")
    offset = 0 if spacing != "leading" else int(read["steps_offset"])
    count = (train_steps if is_ddpm else min(train_steps, DDIM_STEPS)) if steps is None else steps
    if kind == "fixed_large" or (is_ddpm and eta == 1):
        found = schedules.ddpm(alpha_bar, count, variance=kind, spacing=spacing, offset=offset)
    else:
        to_one = bool(read["set_alpha_to_one"])
        found = schedules.ddim(alpha_bar, count, eta=eta, spacing=spacing, offset=offset, set_alpha_to_one=to_one)
    table = found.transitions
    of_state, of_output = schedules.clean_factors(str(read["prediction_type"]), table.alpha, table.noise_std)
    threshold = (float(read["dynamic_thresholding_ratio"]), float(read["sample_max_value"]))
    at = found.timesteps
    return Process(
        table,
        at.long() if torch.equal(at, at.round()) else at.float(),
        of_state.float(),
        of_output.float(),
        bound=float(read["clip_sample_range"]) if read["clip_sample"] else None,
        threshold=threshold if read["thresholding"] else None,
    )


def _check_numbers(read: Config) -> None:
    """Raises ValueError for a setting of the scheduler that is not the number it must be."""
    for key in NUMBERS:
        value = read[key]
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise ValueError(f"scheduler_config.json: {key} must be a number, not {value!r}")
    for key in ("num_train_timesteps", "clip_sample_range"):
        if read[key] <= 0:
            raise ValueError(f"scheduler_config.json: {key} must be more than 0, not {read[key]}")
    betas = read["trained_betas"]
    if betas is not None and not all(isinstance(beta, (int, float)) and 0 < beta <= 1 for beta in betas):
        raise ValueError("scheduler_config.json: trained_betas must be numbers between 0 and 1")


def _variance(stated: str, chosen: str | None, learned: bool, eta: float) -> str:
    """``fixed_small`` or ``fixed_large``."""
    if chosen is not None:
        if chosen not in ("fixed_small", "fixed_large"):
            raise ValueError(f"variance must be fixed_small or fixed_large, not {chosen!r}")
        if chosen == "fixed_large" and eta < 1:
            raise ValueError(f"variance fixed_large is DDPM's, and eta {eta:g} asks for DDIM's steps; leave one out")
        return chosen
    if stated in LEARNED or learned:
        what = f"variance_type {stated!r}" if stated in LEARNED else "a network with outputs for a learned variance"
        raise ValueError(
            f"{what}: a variance that depends on the state cannot be sampled exactly, since drafts and target would "
            "not share it; set target.variance to fixed_small or fixed_large in its place, which is another law than "
            "the model's own"
        )
    if stated not in schedules.VARIANCES:
        raise ValueError(
            f"variance_type {stated!r} is unknown; known are {', '.join((*schedules.VARIANCES, *LEARNED))}; set "
            "target.variance to fixed_small or fixed_large"
        )
    return "fixed_small" if eta < 1 else schedules.VARIANCES[stated]


def _alpha_bar(read: dict[str, Any]) -> Tensor:
    """ᾱ of the training schedule, float64 [T]."""
    if read["trained_betas"] is not None:
        beta = torch.tensor(read["trained_betas"], dtype=torch.float32)
    else:
        ends = float(read["beta_start"]), float(read["beta_end"])
        beta = schedules.beta_schedule(str(read["beta_schedule"]), int(read["num_train_timesteps"]), *ends)
    return schedules.alpha_bar_of(schedules.zero_terminal_snr(beta) if read["rescale_betas_zero_snr"] else beta)
