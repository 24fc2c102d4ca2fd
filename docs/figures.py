"""Draws the pictures of docs/how-it-works.md from real runs: `python docs/figures.py` (a minute on one CPU core)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import Tensor

import specdiff
from specdiff import Request, Sampler, Transitions
from specdiff.targets import GaussianMixture

FOLDER = Path(__file__).parent / "figures"
KEPT, REJECTED, PATH, CALM = "#1b7f3b", "#c0392b", "#222222", "#d8d8d8"


@dataclass
class Round:
    """What the network saw in one round of a single lane.

    Attributes:
        start: number of the step that the round begins at.
        states: ỹ_0 … ỹ_γ, [drafts + 1, *shape].
    """

    start: int
    states: Tensor


class Watched:
    """A target that keeps what it is asked, of a sampler with one lane."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self.rounds: list[Round] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def denoise(self, state: Tensor, step: Tensor, conditioning: dict[str, Tensor]) -> Tensor:
        start = int(step[0])
        rows = int((step == torch.arange(start, start + len(step))).int().cumprod(0).sum())  # the others are padding
        self.rounds.append(Round(start, state[:rows].clone()))
        answer: Tensor = self._target.denoise(state, step, conditioning)
        return answer


def watch(target: Any, request: Request, **settings: Any) -> tuple[list[Round], Tensor]:
    """The rounds of one image, and its states before every step and after the last, [N + 1, *shape]."""
    watched = Watched(target)
    steps = range(len(target.transitions) + 1)
    sampler = Sampler(watched, lanes=1, record_steps=steps, **settings)
    (sample,) = sampler.sample([request]).samples
    return watched.rounds, torch.stack([sample.states[step] for step in steps])


def trajectory() -> None:
    """A chain in one dimension: every draft, kept or rejected, and the path that came of it."""
    steps = 40
    alpha_bar = torch.cos((0.99 - torch.arange(steps, dtype=torch.float64) / steps * 0.95) * torch.pi / 2) ** 2
    target = GaussianMixture(
        torch.tensor([[-1.0], [0.2], [1.0]]), torch.full((3,), 0.05), torch.ones(3), Transitions.ddim(alpha_bar)
    )
    rounds, states = watch(target, Request(key="a", seed=8), draft_length=7)
    path = states.flatten().numpy()
    figure, axes = plt.subplots(figsize=(10, 4.2))
    ends = [each.start for each in rounds[1:]] + [steps]
    for number, (each, end) in enumerate(zip(rounds, ends, strict=True)):
        if number % 2:
            axes.axvspan(each.start, end, color=CALM, alpha=0.35, lw=0)
        values = each.states.flatten().numpy()
        where = np.arange(each.start, each.start + len(values))
        kept = int(np.isclose(values, path[where]).cumprod().sum())  # ỹ_0 and the drafts that stand
        axes.plot(where[kept - 1 :], values[kept - 1 :], color=REJECTED, lw=0.8, ls=":", zorder=2)
        axes.scatter(where[kept:], values[kept:], s=22, facecolor="white", edgecolor=REJECTED, lw=1, zorder=3)
        axes.scatter(where[1:kept], values[1:kept], s=22, color=KEPT, zorder=5)
    axes.plot(np.arange(steps + 1), path, color=PATH, lw=1.2, zorder=4)
    for label, style in (
        ("committed path", {"color": PATH}),
        ("draft, kept", {"color": KEPT, "marker": "o", "ls": ""}),
        ("draft, rejected", {"color": REJECTED, "marker": "o", "mfc": "white", "ls": ":"}),
    ):
        axes.plot([], [], label=label, **style)
    axes.set(xlabel="denoising step n (0: noise)", ylabel="state y", xlim=(0, steps))
    axes.set_title(f"{steps} steps in {len(rounds)} network calls: a stripe is a round, γ = 7", fontsize=11)
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    _save(figure, "trajectory")


def coupling() -> None:
    """One draft against one step of the target: what is kept, and what the residual makes up for."""
    y = np.linspace(-4, 5.5, 800)
    delta = 1.4

    def density(mean: float) -> Any:
        return np.exp(-0.5 * (y - mean) ** 2) / np.sqrt(2 * np.pi)

    target, draft = density(0), density(delta)
    figure, axes = plt.subplots(figsize=(8, 3.4))
    axes.fill_between(y, np.minimum(target, draft), color=KEPT, alpha=0.35, lw=0, label="kept: min(p, q)")
    axes.fill_between(
        y, draft, target, where=target > draft, color=PATH, alpha=0.25, lw=0, label="residual: drawn when a draft falls"
    )
    axes.fill_between(y, target, draft, where=draft > target, color=REJECTED, alpha=0.3, lw=0, label="rejected drafts")
    axes.plot(y, target, color=PATH, lw=1.4, label="q, the target's step")
    axes.plot(y, draft, color=REJECTED, lw=1.4, ls="--", label="p, the draft's step")
    axes.annotate("", (0, 0.42), (delta, 0.42), arrowprops={"arrowstyle": "<->", "lw": 1})
    axes.text(delta / 2, 0.428, "δ", ha="center", va="bottom")
    axes.set(xlabel="next state, in units of σ along the difference of the means", yticks=[], ylim=(0, 0.48))
    axes.legend(frameon=False, fontsize=8.5, loc="upper right")
    _save(figure, "coupling")


def along(images: int = 8) -> None:
    """Where on the way to a picture the rounds are long: the built-in target, 250 steps."""
    target = specdiff.load_target("fashion-mnist", steps=250)
    steps, parts = 250, 25
    advanced, begun = np.zeros(parts), np.zeros(parts)
    for seed in range(images):
        rounds, _ = watch(target, Request(key="a", seed=seed, label=seed), draft_length=7)
        starts = [each.start for each in rounds] + [steps]
        for one, other in pairwise(starts[1:]):  # the first round drafts nothing
            advanced[one * parts // steps] += other - one
            begun[one * parts // steps] += 1
    figure, axes = plt.subplots(figsize=(8, 3.2))
    axes.bar((np.arange(parts) + 0.5) * steps / parts, advanced / begun, width=0.85 * steps / parts, color=KEPT)
    axes.axhline(8, color=PATH, lw=0.8, ls="--")
    axes.text(2, 8.08, "γ + 1 = 8: all drafts kept, and the step after them", fontsize=8.5, va="bottom")
    axes.axhline(1, color="white", lw=0.8, ls=":")
    axes.text(2, 1.08, "1: the sequential sampler", fontsize=8.5, va="bottom", color="white")
    axes.set(
        xlabel="denoising step n (0: noise, 250: picture)",
        ylabel="steps a round advances",
        ylim=(0, 9),
        xlim=(0, steps),
    )
    _save(figure, "along")


def calls() -> None:
    """The same number of network calls, one step a call and several: the clean image predicted so far."""
    target = specdiff.load_target("fashion-mnist", steps=250)
    request = Request(key="a", seed=4, label=9)
    shown = (1, 6, 12, 18, 24, 30, 36, 42, 48)
    rows = []
    for settings in ({"verification": "none"}, {"draft_length": 7}):
        rounds, states = watch(target, request, **settings)
        starts = [each.start for each in rounds] + [250]
        rows.append((len(rounds), [min(starts[min(call, len(starts) - 1)], 249) for call in shown], states))
    figure, axes = plt.subplots(2, len(shown), figsize=(10, 2.9))
    conditioning = target.condition([request])
    for line, (total, at, states) in zip(axes, rows, strict=True):
        for axis, call, step in zip(line, shown, at, strict=True):
            predicted = target.denoise(states[step : step + 1], torch.tensor([step]), conditioning)
            axis.imshow(target.decode(predicted)[0, :, :, 0], cmap="gray", vmin=0, vmax=255)
            axis.set(xticks=[], yticks=[])
            axis.set_xlabel(f"step {step if call < total else 250}", fontsize=8)
        line[0].set_ylabel(f"{total} calls\nin all", fontsize=9)
    for axis, call in zip(axes[0], shown, strict=True):
        axis.set_title(f"{call} call{'s'[: call - 1]}", fontsize=9)
    _save(figure, "calls")


def _save(figure: Any, name: str) -> None:
    FOLDER.mkdir(exist_ok=True)
    figure.tight_layout()
    figure.savefig(FOLDER / f"{name}.png", dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    torch.set_num_threads(1)
    with torch.no_grad():
        for draw in (trajectory, coupling, along, calls):
            draw()
