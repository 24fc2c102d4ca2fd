"""What a sampler needs of the thing it samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from specdiff.requests import Request
from specdiff.transitions import Transitions


class Target(Protocol):
    """A denoiser with its transitions; a user's own model is a class with these five.

    A target may also have ``device``, the torch device on which states are kept (the CPU without it); ``compile``,
    whether the sampler compiles its own part of a round too (not without it); ``gain``, its Kalman gain
    (``gain="kalman"`` calibrates one without it); ``decode_rows``, the number of rows with which ``decode`` is always
    called (1 without it), for decoders that are quicker in batches; and what :class:`Guided` adds.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one state."""
        ...

    @property
    def transitions(self) -> Transitions: ...

    def denoise(self, state: Tensor, step: Tensor, conditioning: dict[str, Tensor]) -> Tensor:
        """Predict the clean image, with everything deterministic that belongs to the sampler applied.

        Args:
            state: float32 [rows, *shape], the state before the step.
            step: int64 [rows], 0 … N−1.
            conditioning: as ``condition`` made it; each tensor's leading dimension is rows.

        Returns:
            float32 [rows, *shape]. A row's answer must not depend on the other rows.
        """
        ...

    def condition(self, requests: Sequence[Request]) -> dict[str, Tensor]:
        """Turn requests into tensors whose leading dimension is rows; empty for an unconditional target.

        Raises:
            ValueError: a request that the target cannot serve, named by its key.
        """
        ...

    def decode(self, latents: Tensor) -> Tensor:
        """Final states, float32 [rows, *shape], to pixels, uint8 [rows, height, width, channels].

        May be called from another thread than the rest.

        Raises:
            ValueError: a row that cannot be decoded; the others are then decoded without it.
        """
        ...


@runtime_checkable
class Guided(Target, Protocol):
    """A target with classifier-free guidance, which takes a second row of the network for an image that asks for it.

    ``denoise`` does all of it by itself. The sampler calls its parts instead, so that only the states of guided images
    are doubled, and before calls of ``batch_rows`` rows are cut: with first = ``output(state, step, conditioning)``
    and second = ``output(state, step, unguided(conditioning))``, the prediction is ``conclude(first, second, state,
    step, conditioning)``. For an image that is not guided second is first, and the prediction must be the same as if
    it had never been heard of guidance.
    """

    def guided(self, requests: Sequence[Request]) -> list[bool]:
        """Whether each request needs a second row."""
        ...

    def output(self, state: Tensor, step: Tensor, conditioning: dict[str, Tensor]) -> Tensor:
        """The network's own output, float32 [rows, *shape]; arguments as for ``denoise``."""
        ...

    def unguided(self, conditioning: dict[str, Tensor]) -> dict[str, Tensor]:
        """The conditioning of the second rows, with the same names and shapes."""
        ...

    def conclude(
        self, first: Tensor, second: Tensor, state: Tensor, step: Tensor, conditioning: dict[str, Tensor]
    ) -> Tensor:
        """The prediction, float32 [rows, *shape]; row by row, so that it does not depend on how many there are."""
        ...


@dataclass(frozen=True)
class TargetInfo:
    """What can be told of a target without building its network.

    Attributes:
        name: as given to ``load_target``.
        description: one line.
        shape: of a state; for images channels, height, width.
        num_classes: None for a target without classes.
        has_null_class: whether a request may leave its label out although there are classes.
        takes_prompts: whether requests need a prompt.
        steps: N.
        licence: of the weights.
        weights_sha256: None where there are no weights.
        gain_sha256: of the stored Kalman gain; None where there is none.
        class_names: one a class, or empty.
        takes_guidance: whether a request may have a guidance scale.
        config_sha256: of configurations that decide, beside the settings, what is sampled; None where there are none.
        revision: commit of a model from the hub.
    """

    name: str
    description: str
    shape: tuple[int, ...]
    num_classes: int | None
    has_null_class: bool
    takes_prompts: bool
    steps: int
    licence: str
    weights_sha256: str | None
    gain_sha256: str | None = None
    class_names: tuple[str, ...] = ()
    takes_guidance: bool = False
    config_sha256: str | None = None
    revision: str | None = None
