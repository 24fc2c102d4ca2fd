"""What the predictions of a round's drafts are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from specdiff.gain import Gain
from specdiff.transitions import Transitions

Predict = Callable[[int, Tensor], Tensor]


@dataclass(frozen=True)
class Window:
    """The steps that a round drafts, and the random numbers that they take.

    Attributes:
        step: int64 [lanes, drafts + 1], each lane's steps from where it is.
        a, b, sigma: float32 [lanes, drafts + 1, 1 …], of the transitions.
        noise: float32 [lanes, drafts + 1, *shape], z.
    """

    step: Tensor
    a: Tensor
    b: Tensor
    sigma: Tensor
    noise: Tensor

    def next(self, j: int, state: Tensor, prediction: Tensor) -> Tensor:
        """The state after the window's step j, float32 [lanes, *shape], if the clean image were as predicted."""
        return self.a[:, j] * state + self.b[:, j] * prediction + self.sigma[:, j] * self.noise[:, j]


class Drafter(Protocol):
    """Predicts the clean image for the drafts of a round.

    Attributes:
        opens: whether every round opens with a call of the network at its own start, which ``observe`` is then told of
            before the drafts. Where it does not, a lane's first round has nothing to go by and drafts nothing.
    """

    opens: bool

    def draft(self, state: Tensor, window: Window) -> Tensor:
        """The clean-image predictions x̃ of the window's drafts, float32 [lanes, drafts, *shape].

        Draft j starts from ỹ_j, where ỹ_0 is state, float32 [lanes, *shape], and ỹ_{j+1} = window.next(j, ỹ_j, x̃_j);
        what is predicted for it may depend on what has been observed and on ỹ_0 … ỹ_j, never on later noise.
        """
        ...

    def observe(self, path: Tensor, predictions: Tensor, step: Tensor, kept: Tensor, length: Tensor) -> None:
        """Learn from what the network said.

        Args:
            path: float32 [lanes, drafts + 1, *shape], ỹ_0 ….
            predictions: float32 [lanes, drafts + 1, *shape], x̂ at those states.
            step: int64 [lanes, drafts + 1], their steps.
            kept: int64 [lanes], τ.
            length: int64 [lanes], how many drafts counted.
        """
        ...


class ReusingDrafter:
    """Makes drafts from evaluations that were paid for already.

    Which ones: ``frozen`` has the round's own opening call. ``free`` has one of the last verification's: at the
    ``rejected`` draft, which belongs to the same step as the new state and, where its orthogonal noise was kept, lies
    next to it, or at the last ``accepted`` one (arXiv 2606.13426, section 4). ``picard`` has all of the last
    verification's, and drafts each step from the evaluation at that same step, so that with noise that belongs to the
    step a round is a Picard sweep; steps beyond them are drafted from the last.

    How they are carried to the draft's own state: the clean image (``x0``; a martingale under full churn), the noise
    (``eps``) or the velocity (``v``: α ε − s x on a variance-preserving path, ε − x on the interpolant) is held. A gain
    corrects ``x0`` for the distance (see :mod:`specdiff.gain`).
    """

    def __init__(
        self,
        transitions: Transitions,
        lanes: int,
        shape: tuple[int, ...],
        device: torch.device,
        *,
        kind: str,
        held: str,
        reuse: str,
        gain: Gain | None,
    ) -> None:
        """Nothing observed yet; the settings are those that ``check_settings`` passed."""
        self.opens = kind == "frozen"
        self._kind, self._reuse = kind, reuse
        self._plain = gain is None and held == "x0"
        self._carry = _Filtered(transitions, gain, device) if gain else _Held(transitions, held, shape, device)
        # What is remembered, [lanes, nodes, …]: predictions, their states where those are needed, and, at steps from
        # start on, how many count.
        self._predictions = torch.zeros((lanes, 1, *shape), device=device)
        self._path = None if self._plain else torch.zeros_like(self._predictions)
        self._start = torch.zeros(lanes, dtype=torch.int64, device=device)
        self._last = torch.zeros(lanes, dtype=torch.int64, device=device)

    def draft(self, state: Tensor, window: Window) -> Tensor:
        drafts = window.step.shape[1] - 1
        if self._plain and self._kind != "picard":
            return self._predictions.expand(-1, drafts, *state.shape[1:])  # one for all, and no copy of it
        step = window.step[:, :drafts]
        node = self._node(step)
        lane = torch.arange(len(state), device=state.device)[:, None]
        prediction = self._predictions[lane, node]  # [lanes, drafts, *shape]
        if self._path is None:
            return prediction
        predict = self._carry.to(step, self._start[:, None] + node, self._path[lane, node], prediction)
        guesses = torch.empty_like(prediction)
        for j in range(drafts):
            guesses[:, j] = predict(j, state)
            state = window.next(j, state, guesses[:, j])
        return guesses

    def _node(self, step: Tensor) -> Tensor:
        """Which of the remembered evaluations serves a step: its own, else the last. Both int64 [lanes, drafts]."""
        return torch.minimum((step - self._start[:, None]).clamp(min=0), self._last[:, None])

    def observe(self, path: Tensor, predictions: Tensor, step: Tensor, kept: Tensor, length: Tensor) -> None:
        if self._kind == "picard":
            self._predictions, self._start, self._last = predictions, step[:, 0], length
            self._path = None if self._plain else path
            return
        at = torch.minimum(kept + 1, length) if self._reuse == "rejected" else kept
        lane = torch.arange(len(kept), device=kept.device)
        self._predictions, self._start = predictions[lane, at][:, None], step[lane, at]
        self._path = None if self._plain else path[lane, at][:, None]


class _Held:
    """x̃ = r′ y′ + k′ (x̂ − r y) / k: the noise or the velocity, as x̂ and y have it, at another state and step."""

    def __init__(self, transitions: Transitions, held: str, shape: tuple[int, ...], device: torch.device) -> None:
        ones, alpha = torch.ones_like(transitions.alpha), transitions.alpha.clamp(min=1e-30)
        tables = {
            "x0": (0 * ones, ones),
            "eps": (1 / alpha, -transitions.noise_std / alpha),
            "v": (transitions.velocity_scale, -transitions.velocity_noise),
        }[held]
        # [N, 1 …], so that a step picks a factor of a state's rank
        self._of_state, self._of_value = (_table(table, shape, device) for table in tables)

    def to(self, step: Tensor, at: Tensor, path: Tensor, prediction: Tensor) -> Predict:
        """What is predicted for draft j at a state.

        Args:
            step: int64 [lanes, drafts], of the drafts.
            at: int64 [lanes, drafts], of the evaluations that are reused.
            path: float32 [lanes, drafts, *shape], their states.
            prediction: float32 [lanes, drafts, *shape], their predictions.
        """
        value = (prediction - self._of_state[at] * path) / self._of_value[at]
        slope, fixed = self._of_state[step], self._of_value[step] * value
        return lambda j, state: slope[:, j] * state + fixed[:, j]


class _Filtered:
    """x̃ = x̂ + C′ [(u′ − u) − x̂ (λ′ − λ)] (see :mod:`specdiff.gain`)."""

    def __init__(self, transitions: Transitions, gain: Gain, device: torch.device) -> None:
        self._gain, shape = gain, tuple(gain.shrinkage.shape[1:])
        snr = transitions.snr.clamp(min=1e-30)
        self._snr, self._natural = (_table(table, shape, device) for table in (snr, transitions.natural))
        self._covariance = _table(gain.at(snr) / snr.view(-1, *(1 for _ in shape)), shape, device)

    def to(self, step: Tensor, at: Tensor, path: Tensor, prediction: Tensor) -> Predict:
        """As for ``_Held``."""
        known = self._natural[at] * path + prediction * (self._snr[step] - self._snr[at])
        natural, covariance, scale = self._natural[step], self._covariance[step], self._gain.scale(prediction)

        def predict(j: int, state: Tensor) -> Tensor:
            innovation = natural[:, j] * state - known[:, j]
            if scale is None:
                return prediction[:, j] + self._gain.apply(covariance[:, j], innovation)
            return prediction[:, j] + scale[:, j] * self._gain.apply(covariance[:, j], scale[:, j] * innovation)

        return predict


def _table(table: Tensor, shape: tuple[int, ...], device: torch.device) -> Tensor:
    """A table [N] or [N, *shape] as float32 [N, 1 … or *shape]."""
    return table.view(len(table), *(table.shape[1:] or (1 for _ in shape))).float().to(device)
