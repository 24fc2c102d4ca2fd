"""Lanes and rounds: requests in, samples out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specdiff.drafters import Drafter, ReusingDrafter, Window
from specdiff.gain import Gain, calibrate
from specdiff.noise import Purpose, normals, uniforms
from specdiff.requests import Request, Sample
from specdiff.stats import Stats, parts_of
from specdiff.targets.base import Guided, Target
from specdiff.verification import Block, Reflection, Token, Verification

DrafterFactory = Callable[[int, tuple[int, ...], torch.device], Drafter]

_TINY = 1e-30


@dataclass(frozen=True)
class Result:
    """Samples in the order of their requests, and the counters of the run that made them."""

    samples: list[Sample]
    stats: Stats


class Sampler:
    """Draws images whose law is exactly that of the target's sequential sampler.

    Every number depends on the request's seed alone, so that an image has the same bytes whatever the order of the
    requests, the number of lanes and the company, as long as ``batch_rows`` and the software are the same.
    """

    def __init__(
        self,
        target: Target,
        *,
        drafter: str | DrafterFactory = "free",
        verification: str | Verification = "block",
        draft_length: int = 7,
        lanes: int = 16,
        held: str = "x0",
        reuse: str = "rejected",
        orthogonal: str = "kept",
        correction: str = "residual",
        gain: str | Gain = "none",
        batch_rows: int | None = None,
        record_steps: Sequence[int] = (),
    ) -> None:
        """Prepare a sampler; no call of the network is made yet.

        Args:
            target: what is sampled.
            drafter: ``free``, ``frozen`` or ``picard`` (see :class:`specdiff.drafters.ReusingDrafter`), or a factory of
                your own that gets lanes, shape and device.
            verification: ``block``, ``token`` or ``reflection``; ``none`` is the sequential baseline, one step a call;
                or a rule of your own.
            draft_length: γ, steps drafted a round, at least 1.
            lanes: images in progress at a time.
            held: ``x0``, ``eps`` or ``v``, what a draft takes over from an earlier prediction.
            reuse: ``rejected`` or ``accepted``, which prediction the Free Drafter takes it from.
            orthogonal: after a rejection, whether the part of the draft's noise that the coupling has not looked at is
                ``kept`` or drawn ``fresh``. Both are exact.
            correction: after a rejection, ``residual`` draws the new state, ``transport`` moves the draft there.
            gain: ``none``; ``kalman``, the target's stored gain, or one calibrated now; or a gain of your own.
            batch_rows: rows of every network call, padded where needed; None is lanes × (γ + 1). The opening calls of
                ``frozen`` have batch_rows / (γ + 1).
            record_steps: numbers of steps, 0 … N; ``Sample.states`` then holds the state before each.

        Raises:
            ValueError: an unknown name, a number out of range, or settings that cannot go together.
        """
        check_settings(
            drafter=drafter,
            verification=verification,
            draft_length=draft_length,
            lanes=lanes,
            held=held,
            reuse=reuse,
            orthogonal=orthogonal,
            correction=correction,
            gain=gain,
            batch_rows=batch_rows,
        )
        if verification == "none":
            draft_length = 0
        steps = len(target.transitions)
        if not all(0 <= step <= steps for step in record_steps):
            raise ValueError(f"record_steps must lie between 0 and {steps}, not {list(record_steps)}")
        self.target = target
        self.draft_length = draft_length
        self.lanes = lanes
        self.batch_rows = batch_rows or lanes * (draft_length + 1)
        self.orthogonal = orthogonal
        self.record_steps = tuple(record_steps)
        self.device = torch.device(getattr(target, "device", "cpu"))
        self.compiled = bool(getattr(target, "compile", False))
        self.decode_rows: int = getattr(target, "decode_rows", 1)
        self.drafter = _drafter(drafter, target, held, reuse, gain) if draft_length else None
        self.verification = _verification(verification, correction)

    def start(self) -> Run:
        """Empty lanes, to be filled and advanced by the caller."""
        return Run(self)

    def stream(self, requests: Iterable[Request]) -> Iterator[Sample]:
        """Samples in the order in which they finish; requests are taken as lanes fall free.

        Where the target decodes several at a time, samples wait until there are as many.
        """
        run = self.start()
        waiting = iter(requests)
        finished: list[Sample] = []
        while True:
            run.submit(list(islice(waiting, run.free)))
            if not run.busy:
                yield from self.decode(finished)
                return
            finished += run.round()
            whole = len(finished) - len(finished) % self.decode_rows
            yield from self.decode(finished[:whole])
            finished = finished[whole:]

    def sample(self, requests: Iterable[Request]) -> Result:
        """All samples, in the order of the requests.

        Raises:
            ValueError: two requests have one key, or the target cannot serve one.
        """
        requests = list(requests)
        order = {request.key: i for i, request in enumerate(requests)}
        if len(order) < len(requests):
            raise ValueError("two requests have the same key")
        run = self.start()
        waiting = iter(requests)
        samples: list[Sample] = []
        while len(samples) < len(requests):
            run.submit(list(islice(waiting, run.free)))
            samples += run.round()
        return Result(self.decode(sorted(samples, key=lambda sample: order[sample.key])), run.stats)

    def decode(self, samples: Sequence[Sample]) -> list[Sample]:
        """Samples with the images of their latents, as :meth:`Run.round` leaves them to be made.

        The decoder is always called with exactly ``decode_rows`` rows, the last one repeated where there are fewer, so
        that an image's bytes do not depend on which others are decoded with it. May be called in another thread than
        the rounds.
        """
        latents = [sample for sample in samples if sample.latent is not None]
        groups = [latents[at : at + self.decode_rows] for at in range(0, len(latents), self.decode_rows)]
        decoded = chain.from_iterable(map(self._decoded, groups))
        return [sample if sample.latent is None else next(decoded) for sample in samples]

    @torch.no_grad()
    def _decoded(self, group: Sequence[Sample]) -> list[Sample]:
        latents = torch.stack([cast(Tensor, sample.latent) for sample in group])
        padded = torch.cat([latents, latents[-1:].expand(self.decode_rows - len(group), *latents.shape[1:])])
        try:
            images = self.target.decode(padded.to(self.device))[: len(group)].cpu().numpy()
        except ValueError as error:
            if len(group) > 1:  # find out which
                return [sample for each in group for sample in self._decoded([each])]
            return [replace(group[0], image=None, latent=None, error=str(error))]
        return [replace(sample, image=image) for sample, image in zip(group, images, strict=True)]


class Run:
    """Lanes in progress. What a lane does depends on its own request and past only.

    What the host decides by (step, draft length, …) it keeps in small arrays; states stay on the device, and one small
    read a round tells how far each lane came.
    """

    def __init__(self, sampler: Sampler) -> None:
        self.stats = Stats.zero(sampler.draft_length, len(sampler.target.transitions))
        self._sampler = sampler
        self._target = sampler.target
        self._guide = sampler.target if isinstance(sampler.target, Guided) else None
        self._device = sampler.device
        lanes, shape = sampler.lanes, tuple(sampler.target.shape)

        transitions = sampler.target.transitions
        self._steps = len(transitions)
        stochastic = (transitions.sigma > 0).tolist()
        run_length = [0] * (self._steps + 1)  # stochastic steps in a row from each step on
        for step in reversed(range(self._steps)):
            run_length[step] = run_length[step + 1] + 1 if stochastic[step] else 0
        self._stochastic_run = np.array(run_length)
        self._part = parts_of(self._steps)
        ratio = torch.where(transitions.sigma > 0, transitions.b / transitions.sigma, 0)
        self._tables = torch.stack([transitions.a, transitions.b, transitions.sigma, ratio]).float().to(self._device)

        self._requests: list[Request | None] = [None] * lanes
        self._step = np.zeros(lanes, np.int64)
        self._rounds = np.zeros(lanes, np.int64)
        self._calls = np.zeros(lanes, np.int64)
        self._evaluations = np.zeros(lanes, np.int64)
        self._drafted_until = np.zeros(lanes, np.int64)  # steps before this one have been drafted by some round
        self._guided = np.zeros(lanes, bool)  # whether states need a second row
        self._ready = np.zeros(lanes, bool)  # whether the drafter knows something of the lane

        self._seed = torch.zeros(lanes, dtype=torch.int64, device=self._device)
        self._state = torch.zeros((lanes, *shape), device=self._device)
        self._conditioning: dict[str, Tensor] = {}
        self._records = torch.zeros((lanes, len(sampler.record_steps), *shape))
        self._drafter = sampler.drafter(lanes, shape, self._device) if sampler.drafter else None
        compiled = torch.compile(dynamic=False) if sampler.compiled else lambda function: function
        self._draft, self._verify = compiled(self._draft_path), compiled(self._verify_path)

    @property
    def busy(self) -> int:
        """How many lanes hold an image in progress."""
        return len(self._requests) - self.free

    @property
    def free(self) -> int:
        """How many lanes are empty."""
        return self._requests.count(None)

    @torch.no_grad()
    def submit(self, requests: Sequence[Request]) -> None:
        """Put requests into empty lanes.

        Raises:
            ValueError: more requests than empty lanes, or the target cannot serve one; then none is taken.
        """
        if len(requests) > self.free:
            raise ValueError(f"{len(requests)} requests for {self.free} empty lanes")
        if not requests:
            return
        conditioning = self._target.condition(requests)
        empty = [lane for lane, request in enumerate(self._requests) if request is None][: len(requests)]
        lanes = torch.tensor(empty, device=self._device)
        seeds = torch.tensor([request.seed for request in requests], device=self._device)
        zero = torch.zeros_like(seeds)
        start = normals(seeds, zero, zero, self._state[0].numel(), Purpose.START)
        self._seed[lanes] = seeds
        self._state[lanes] = start.view(-1, *self._state.shape[1:])
        for name, rows in conditioning.items():
            if name not in self._conditioning:
                self._conditioning[name] = rows.new_zeros((len(self._requests), *rows.shape[1:]))
            self._conditioning[name][lanes] = rows
        for lane, request in zip(empty, requests, strict=True):
            self._requests[lane] = request
        for counter in (self._step, self._rounds, self._calls, self._evaluations, self._drafted_until):
            counter[empty] = 0
        self._ready[empty] = False
        self._guided[empty] = False if self._guide is None else self._guide.guided(requests)
        for i, step in enumerate(self._sampler.record_steps):
            if step == 0:
                self._records[empty, i] = self._state[lanes].cpu()

    @torch.no_grad()
    def round(self) -> list[Sample]:
        """Advance every busy lane by one round: draft, one call, verify.

        Returns:
            The samples that it finished, with their latents; images are left to :meth:`Sampler.decode`, so that no lane
            waits for them.
        """
        busy = np.array([request is not None for request in self._requests])
        if not busy.any():
            return []
        drafts = self._sampler.draft_length
        opens = self._drafter is not None and self._drafter.opens
        length = np.where(busy & (self._ready | opens), np.minimum(drafts, self._stochastic_run[self._step]), 0)
        bonus = busy & (self._step + length < self._steps)
        position = np.arange(drafts + 1)
        steps = np.minimum(self._step[:, None] + position, self._steps - 1)  # [lanes, γ + 1]
        stream = np.zeros_like(steps)
        if self._sampler.verification is not None and self._sampler.verification.fresh_noise:
            stream = np.where(steps < self._drafted_until[:, None], self._rounds[:, None], 0)
        wanted = busy[:, None] & (position < (length + bonus)[:, None])

        opening = (length > 0) & opens  # lanes whose first state has a call to itself

        tau, finite, delta = self._advance(length, bonus, steps, stream, wanted, opening)

        ahead = tau + ((tau < length) | bonus)
        self.stats.note(self._part[steps], length, tau, ahead, delta)
        self._rounds[busy] += 1
        self._calls += opening.astype(int) + (wanted.sum(1) > opening)
        self._evaluations += wanted.sum(1)
        self._drafted_until = np.maximum(self._drafted_until, self._step + length)
        self._step[busy] += ahead[busy]
        self._ready |= busy
        return [
            self._finish(int(lane), bool(finite[lane]))
            for lane in np.flatnonzero(busy & ((self._step >= self._steps) | ~finite))
        ]

    def _advance(
        self,
        length: NDArray[np.int64],
        bonus: NDArray[np.bool_],
        steps: NDArray[np.int64],
        stream: NDArray[np.int64],
        wanted: NDArray[np.bool_],
        opening: NDArray[np.bool_],
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.float64]]:
        """The round on the device.

        Returns:
            Kept drafts, int64 [lanes]; whether each new state is finite, bool [lanes]; δ of the drafts, float64
            [lanes, γ].
        """
        plan = self._upload(np.column_stack([steps, stream, length, bonus]))  # one copy to the device
        step, streams, rest = plan.split([steps.shape[1], steps.shape[1], 2], 1)
        limit, follows = rest[:, 0], rest[:, 1].bool()
        opened = None
        if opening.any():
            rows = max(1, self._sampler.batch_rows // (self._sampler.draft_length + 1))
            opened = self._evaluate(self._state[:, None], step[:, :1], opening[:, None], rows)
            cast(Drafter, self._drafter).observe(self._state[:, None], opened, step[:, :1], 0 * limit, 0 * limit)
            wanted = wanted & ~(opening[:, None] & (np.arange(wanted.shape[1]) == 0))
        path, guesses, z = self._draft(step, streams)
        predictions = self._evaluate(path, step, wanted, self._sampler.batch_rows)
        if opened is not None:
            first = torch.where(self._upload(opening).view(-1, *([1] * (path.dim() - 1))), opened, predictions[:, :1])
            predictions = torch.cat([first, predictions[:, 1:]], 1)
        self._state, tau, told = self._verify(path, guesses, predictions, z, step, streams, limit, follows)
        if self._drafter is not None and not self._drafter.opens:
            # The network may have failed at a draft that was dropped; that is no reason for the image to fail.
            self._drafter.observe(path, predictions.nan_to_num(0.0, 0.0, 0.0), step, tau, limit)
        read = told.cpu().numpy()  # the round's only one
        kept = read[:, 0].astype(np.int64)
        self._record(path, kept)
        return kept, read[:, 1].astype(bool), read[:, 2:]

    def _draft_path(self, step: Tensor, streams: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Draft.

        Args:
            step, streams: int64 [lanes, γ + 1].

        Returns:
            The path ỹ_0 …, float32 [lanes, γ + 1, *shape]; the predictions x̃ it was made of, one less; and the noise z,
            as many as the path.
        """
        (lanes, count), shape = step.shape, self._state.shape[1:]
        a, b, sigma, _ = self._coefficients(step)
        z = normals(self._seed[:, None], step, streams, shape.numel()).view(lanes, count, *shape)
        path = torch.empty_like(z)
        path[:, 0] = self._state
        if count == 1:
            return path, path[:, :0], z
        window = Window(step, a, b, sigma, z)
        guesses = cast(Drafter, self._drafter).draft(self._state, window)
        for j in range(count - 1):
            path[:, j + 1] = window.next(j, path[:, j], guesses[:, j])
        return path, guesses, z

    def _verify_path(
        self,
        path: Tensor,
        guesses: Tensor,
        predictions: Tensor,
        z: Tensor,
        step: Tensor,
        streams: Tensor,
        limit: Tensor,
        follows: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Verify, and take the step that follows.

        Args:
            path, guesses, z: of ``_draft_path``.
            predictions: float32 [lanes, γ + 1, *shape], x̂ along the path.
            step, streams: int64 [lanes, γ + 1].
            limit: int64 [lanes], drafts that count.
            follows: bool [lanes], whether a step follows the last draft.

        Returns:
            The new states, float32 [lanes, *shape]; τ, int64 [lanes]; and what the host wants to know, float64
            [lanes, 2 + γ]: τ, whether the new state is finite, δ of the drafts.
        """
        every, drafts = torch.arange(len(path), device=path.device), guesses.shape[1]
        a, b, sigma, ratio = self._coefficients(step)
        if drafts:
            gap = ratio[:, :drafts] * (guesses - predictions[:, :drafts])
            tau, noise, delta = self._couple(gap, z, limit, step, streams)
        else:
            tau, noise, delta = torch.zeros_like(limit), z[:, 0], ratio.flatten(1)[:, :0].double()
        # A step of the target from the last state kept; its noise is the residual's where a draft was rejected.
        new = a[every, tau] * path[every, tau] + b[every, tau] * predictions[every, tau] + sigma[every, tau] * noise
        ends = (tau == limit) & ~follows
        state = torch.where(ends.view(-1, *(1 for _ in path.shape[2:])), path[every, tau], new)
        finite = state.flatten(1).abs().amax(1).isfinite()
        return state, tau, torch.cat([tau[:, None], finite[:, None], delta], 1)

    def _coefficients(self, step: Tensor) -> Tensor:
        """A, B, σ and B/σ at steps [lanes, n], float32 [4, lanes, n, 1 …]."""
        return self._tables[:, step].reshape(4, *step.shape, *(1 for _ in self._state.shape[1:]))

    def _couple(
        self, gap: Tensor, z: Tensor, limit: Tensor, step: Tensor, streams: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Verify the drafts.

        Args:
            gap: float32 [lanes, γ, *shape], Δ = (m^p − m^q) / σ.
            z: float32 [lanes, γ + 1, *shape], the noise of the drafts and of a bonus step.
            limit: int64 [lanes], drafts that count.
            step, streams: int64 [lanes, γ + 1].

        Returns:
            τ, int64 [lanes]; the noise of the step that follows it, float32 [lanes, *shape]: z there, but where
            draft τ + 1 was rejected its part along Δ follows the residual; and δ = ‖Δ‖, float64 [lanes, γ].
        """
        verification = cast(Verification, self._sampler.verification)
        lanes, drafts, *shape = gap.shape
        every, ones = torch.arange(lanes, device=self._device), [1] * len(shape)
        counts = torch.arange(drafts, device=self._device) < limit[:, None]
        squared, cross = _total(gap.square(), 2), _total(gap * z[:, :drafts], 2)
        delta = torch.where(counts, squared.sqrt(), 0)
        log_ratio = torch.where(counts, -cross - 0.5 * squared, 0)
        u, v = uniforms(self._seed[:, None], step, streams)
        tau, log_alpha = verification.accept(limit, log_ratio, delta, u[:, :drafts])

        at = tau.clamp(max=drafts - 1)
        distance = delta[every, at].clamp(min=_TINY)
        direction = gap[every, at] / distance.float().view(-1, *ones)
        noise = z[every, tau]
        if self._sampler.orthogonal == "fresh":
            other = normals(self._seed, step[every, at], streams[every, at], noise[0].numel(), Purpose.ORTHOGONAL)
            rest = other.view_as(noise)
            along = _total(rest * direction, 1)
        else:
            rest, along = noise, cross[every, at] / distance
        drafted_s = cross[every, at] / distance + distance
        shift = verification.correct(log_alpha, distance, drafted_s, v[every, at]) - along
        corrected = rest + shift.float().view(-1, *ones) * direction
        return tau, torch.where((tau < limit).view(-1, *ones), corrected, noise), delta

    def _evaluate(self, path: Tensor, step: Tensor, wanted: NDArray[np.bool_], size: int) -> Tensor:
        """x̂ at the wanted states of path, in calls of exactly ``size`` rows; elsewhere any number."""
        rows = np.flatnonzero(wanted)
        if not len(rows):
            return torch.zeros_like(path)
        states, per_lane, useful = path.flatten(0, 1), path.shape[1], len(rows)
        if len(states) <= size and not self._guided.any():
            rows = np.arange(len(states))  # padding would take the place of what is left out
        count = len(rows)
        twice = np.flatnonzero(self._guided[rows // per_lane])  # states that get a second row, without condition
        padding = -(count + len(twice)) % size
        asked = self._upload(np.concatenate([rows, rows[twice], np.repeat(rows[:1], padding)]))
        whole = count == len(asked) == len(states)  # then nothing need be copied
        seen, steps, lane = states if whole else states[asked], step.flatten()[asked], asked // per_lane
        conditioning = {name: values[lane] for name, values in self._conditioning.items()}
        if self._guide is not None and len(twice):
            second = slice(count, count + len(twice))
            for name, values in self._guide.unguided(_rows(conditioning, second)).items():
                conditioning[name][second] = values
        call = self._target.denoise if self._guide is None else self._guide.output
        chunks = [slice(at, at + size) for at in range(0, len(asked), size)]
        answers = torch.cat([call(seen[chunk], steps[chunk], _rows(conditioning, chunk)) for chunk in chunks])
        found = answers[:count]
        if self._guide is not None:
            other, first = found.clone(), slice(count)
            other[self._upload(twice)] = answers[count : count + len(twice)]
            found = self._guide.conclude(found, other, seen[first], steps[first], _rows(conditioning, first))
        self.stats.batched_calls += len(chunks)
        self.stats.padded_rows += len(asked) - useful - len(twice)
        self.stats.guidance_rows += len(twice)
        if whole:
            return found.view_as(path)
        predictions = torch.zeros_like(states)
        predictions[asked[:count]] = found
        return predictions.view_as(path)

    def _record(self, path: Tensor, kept: NDArray[np.int64]) -> None:
        """Keep the states that were asked for: the drafts kept and the new state."""
        for i, wanted in enumerate(self._sampler.record_steps):
            ahead = wanted - self._step
            drafted = np.flatnonzero((ahead > 0) & (ahead <= kept))
            self._records[drafted, i] = path[drafted, ahead[drafted]].cpu()
            reached = np.flatnonzero(ahead == kept + 1)
            self._records[reached, i] = self._state[reached].cpu()

    def _finish(self, lane: int, finite: bool) -> Sample:
        request = cast(Request, self._requests[lane])
        self._requests[lane] = None
        rounds, calls = int(self._rounds[lane]), int(self._calls[lane])
        evaluations = int(self._evaluations[lane])
        made: dict[str, Any] = {"key": request.key, "seed": request.seed, "extra": request.extra}
        made |= {"rounds": rounds, "calls": calls, "evaluations": evaluations}
        if not finite:
            self.stats.failed += 1
            reason = f"the network returned NaN or infinity before step {int(self._step[lane])} of {self._steps}"
            return Sample(image=None, latent=None, error=reason, **made)
        self.stats.samples += 1
        self.stats.steps += self._steps
        self.stats.rounds += rounds
        self.stats.calls += calls
        self.stats.evaluations += evaluations
        states = dict(zip(self._sampler.record_steps, self._records[lane].clone().unbind(), strict=True))
        return Sample(image=None, latent=self._state[lane].cpu().clone(), states=states, **made)

    def _upload(self, values: NDArray[Any]) -> Tensor:
        host = torch.from_numpy(np.ascontiguousarray(values))
        return host.pin_memory().to(self._device, non_blocking=True) if self._device.type == "cuda" else host


def _rows(conditioning: Mapping[str, Tensor], rows: slice) -> dict[str, Tensor]:
    return {name: values[rows] for name, values in conditioning.items()}


def _total(values: Tensor, kept: int) -> Tensor:
    """Sum over all but the first dimensions, float64.

    Rows first: a long sum is split among threads where there are few of them, and would then depend on how many lanes
    there are.
    """
    rows = values.sum(-1, dtype=torch.float64)
    return rows.flatten(kept).sum(kept) if rows.dim() > kept else rows


def check_settings(
    *,
    drafter: str | DrafterFactory,
    verification: str | Verification,
    draft_length: int,
    lanes: int,
    held: str,
    reuse: str,
    orthogonal: str,
    correction: str,
    gain: str | Gain,
    batch_rows: int | None,
) -> None:
    """Whether the settings of :class:`Sampler` are known and go together; no target is needed.

    Raises:
        ValueError: they do not, and why.
    """
    known = {
        "drafter": (drafter, ("free", "frozen", "picard")),
        "verification": (verification, ("none", "token", "reflection", "block")),
        "held": (held, ("x0", "eps", "v")),
        "reuse": (reuse, ("rejected", "accepted")),
        "orthogonal": (orthogonal, ("kept", "fresh")),
        "gain": (gain, ("none", "kalman")),
    }
    if verification == "auto":
        raise ValueError("verification 'auto' is settled before a sampler is made: see specdiff.pilot")
    for name, (choice, choices) in known.items():
        if isinstance(choice, str) and choice not in choices:
            raise ValueError(f"{name} must be {', '.join(choices[:-1])} or {choices[-1]}, not {choice!r}")
    for name, number in (("draft_length", draft_length), ("lanes", lanes), ("batch_rows", batch_rows)):
        if number is not None and number < 1:
            hint = "; verification='none' drafts nothing" if name == "draft_length" else ""
            raise ValueError(f"{name} must be at least 1, not {number}{hint}")
    if verification == "block" and drafter == "picard":
        raise ValueError(
            "drafter='picard' is biased under block verification, which has looked at the noise of steps that are then "
            "drafted again; take verification='reflection' or 'token'"
        )
    if correction == "reflection":
        raise ValueError(
            "correction='reflection' is biased wherever α < 1: no invertible correction of constant Jacobian exists "
            "for a block of two or more (arXiv 2606.13426, Proposition 3.2); take 'transport', or "
            "verification='reflection'"
        )
    if correction not in ("residual", "transport"):
        raise ValueError(f"correction must be residual or transport, not {correction!r}")
    if correction == "transport" and verification == "reflection":
        raise ValueError("verification='reflection' is its own correction; correction belongs to token and block")
    if gain != "none" and held != "x0":
        raise ValueError(f"a gain corrects a held x0, not {held}")
    if gain != "none" and drafter == "frozen":
        raise ValueError("a gain is for drafter='free' or 'picard': a frozen prediction is made where it is used")


def _drafter(choice: str | DrafterFactory, target: Target, held: str, reuse: str, gain: str | Gain) -> DrafterFactory:
    if not isinstance(choice, str):
        return choice
    if gain == "kalman":
        gain = getattr(target, "gain", None) or calibrate(target)
    correction = gain if isinstance(gain, Gain) else None
    return partial(ReusingDrafter, target.transitions, kind=choice, held=held, reuse=reuse, gain=correction)


def _verification(choice: str | Verification, correction: str) -> Verification | None:
    if not isinstance(choice, str):
        return choice
    rules: dict[str, Verification | None] = {
        "none": None,
        "token": Token(correction),
        "reflection": Reflection(),
        "block": Block(correction),
    }
    return rules[choice]
