"""What the predictions of a round's drafts are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from specdiff.gain import Gain
from specdiff.transitions import Transitions


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
    corrects ``x0`` for the distance (see :mod:`specdiff.gain`). Each is affine in the draft's state.
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
        self._basis = gain.basis if gain is not None else None
        self._carry = (
            _Carry.of_held(transitions, held, shape, device)
            if gain is None
            else _Carry.of_gain(transitions, gain, shape, device)
        )
        # What is remembered, [lanes, nodes, …]: states, predictions and, at their steps from start on, how many count.
        self._path = torch.zeros((lanes, 1, *shape), device=device)
        self._predictions = torch.zeros((lanes, 1, *shape), device=device)
        self._start = torch.zeros(lanes, dtype=torch.int64, device=device)
        self._last = torch.zeros(lanes, dtype=torch.int64, device=device)

    def draft(self, state: Tensor, window: Window) -> Tensor:
        drafts = window.step.shape[1] - 1
        step = window.step[:, :drafts]
        node = self._node(step)
        lane = torch.arange(len(state), device=state.device)[:, None]
        prediction = self._predictions[lane, node]  # [lanes, drafts, *shape]
        if self._carry.plain:
            return prediction
        into, back = (self._basis.forward, self._basis.inverse) if self._basis else (_same, _same)
        at = self._start[:, None] + node
        slope, fixed = self._carry.affine(step, at, into(self._path[lane, node]), into(prediction))
        # The drafts' states in the basis: the predictions need them, and they need the predictions.
        y, noise = into(state), into(window.noise[:, :drafts])
        guesses = torch.empty_like(fixed)
        for j in range(drafts):
            guesses[:, j] = slope[:, j] * y + fixed[:, j]
            y = window.a[:, j] * y + window.b[:, j] * guesses[:, j] + window.sigma[:, j] * noise[:, j]
        return back(guesses)

    def _node(self, step: Tensor) -> Tensor:
        """Which of the remembered evaluations serves a step: its own, else the last. Both int64 [lanes, drafts]."""
        return torch.minimum((step - self._start[:, None]).clamp(min=0), self._last[:, None])

    def observe(self, path: Tensor, predictions: Tensor, step: Tensor, kept: Tensor, length: Tensor) -> None:
        if self._kind == "picard":
            self._path, self._predictions, self._start, self._last = path, predictions, step[:, 0], length
            return
        at = torch.minimum(kept + 1, length) if self._reuse == "rejected" else kept
        lane = torch.arange(len(kept), device=kept.device)
        self._path, self._predictions = path[lane, at][:, None], predictions[lane, at][:, None]
        self._start = step[lane, at]


@dataclass(frozen=True)
class _Carry:
    """x̃ at (y′, n′) from x̂ at (y, n), affine in both: tables [N, 1 … or frequencies].

    With r = state_factor and k = value_factor at each end: x̃ = r′ y′ + k′ (x̂ − r y) / k where something is held; and
    x̃ = x̂ + C′[(u′ − u) − x̂ (λ′ − λ)] with a gain, where u = y α/s² and λ = α²/s².
    """

    state_factor: Tensor
    value_factor: Tensor
    snr: Tensor
    natural: Tensor
    gain: bool
    plain: bool

    @classmethod
    def of_held(cls, transitions: Transitions, held: str, shape: tuple[int, ...], device: torch.device) -> _Carry:
        ones, alpha = torch.ones_like(transitions.alpha), transitions.alpha.clamp(min=1e-30)
        state_factor, value_factor = {
            "x0": (0 * ones, ones),
            "eps": (1 / alpha, -transitions.noise_std / alpha),
            "v": (transitions.velocity_scale, -transitions.noise_std),
        }[held]
        factors = _tables(shape, device, state_factor, value_factor, transitions.snr, transitions.natural)
        return cls(*factors, gain=False, plain=held == "x0")

    @classmethod
    def of_gain(cls, transitions: Transitions, gain: Gain, shape: tuple[int, ...], device: torch.device) -> _Carry:
        shrinkage = gain.at(transitions.snr)  # λC, float64 [N, *frequencies]
        per_step = (-1, *(1 for _ in shrinkage.shape[1:]))
        snr = transitions.snr.clamp(min=1e-30).view(per_step)
        alpha = transitions.alpha.clamp(min=1e-30).view(per_step)
        # The factor of y′: C α/s² = λC / α. That of the innovation: C.
        factors = _tables(shape, device, shrinkage / alpha, shrinkage / snr, transitions.snr, transitions.natural)
        return cls(*factors, gain=True, plain=False)

    def affine(self, step: Tensor, at: Tensor, state: Tensor, prediction: Tensor) -> tuple[Tensor, Tensor]:
        """Slope and constant, float32 [lanes, drafts, *shape or 1 …], of x̃ = slope · y′ + constant.

        Args:
            step: int64 [lanes, drafts], n′.
            at: int64 [lanes, drafts], n.
            state: float32 [lanes, drafts, *shape], y.
            prediction: float32 [lanes, drafts, *shape], x̂ at y.
        """
        slope, factor = self.state_factor[step], self.value_factor[step]
        if not self.gain:
            value = (prediction - self.state_factor[at] * state) / self.value_factor[at]
            return slope, factor * value
        reached = self.natural[at] * state + prediction * (self.snr[step] - self.snr[at])
        return slope, prediction - factor * reached


def _tables(shape: tuple[int, ...], device: torch.device, *tables: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Tables [N] or [N, *frequencies] as float32 [N, 1 … or *frequencies], so that a step picks what fits a state."""
    a, b, c, d = (
        table.view(len(table), *(table.shape[1:] or (1 for _ in shape))).float().to(device) for table in tables
    )
    return a, b, c, d


def _same(x: Tensor) -> Tensor:
    return x
