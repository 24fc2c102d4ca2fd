"""A saved diffusers pipeline as a target: pixels or latents, with classes and guidance where it has them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specdiff.requests import Request
from specdiff.targets.base import TargetInfo
from specdiff.targets.diffusers.extra import require
from specdiff.targets.diffusers.family import Family, Form, family_of, form_of
from specdiff.targets.diffusers.folder import Component, Folder, configs_sha256, weights_sha256
from specdiff.targets.diffusers.hub import locate
from specdiff.targets.diffusers.latent import DECODE_ROWS, Decoder, scale_of
from specdiff.targets.diffusers.process import Process, process
from specdiff.targets.network import dtype_of, prepare
from specdiff.targets.pixels import pixels


@dataclass(frozen=True)
class _Described:
    """A pipeline's folder, read and checked against the settings, before any network is built."""

    folder: Folder
    revision: str | None
    family: Family
    network: Component
    decoder: Component | None
    form: Form
    process: Process


class Pipeline:
    """A DDPM, DDIM, LDM or DiT pipeline. Its weights are loaded once a process, from files mapped into memory."""

    def __init__(
        self,
        name: str,
        *,
        device: str = "cpu",
        dtype: str = "float32",
        compile: bool = False,
        **settings: Any,
    ) -> None:
        """Load the weights.

        Args:
            name: folder or hub id.
            device: torch device of network and states.
            dtype: arithmetic of the network; states are float32 always.
            compile: whether the network is compiled.
            settings: ``steps``, ``eta``, ``spacing``, ``variance`` as for
                :func:`specdiff.targets.diffusers.process.process`; ``revision``, of a hub id; ``null_class``, whether
                the last class of a class-conditional UNet2DModel stands for no class.

        Raises:
            ValueError: there is no such model, it cannot be sampled exactly, or a setting is out of range.
            TargetUnavailable: the hub is out of reach.
        """
        found = _described(name, dtype=dtype, **settings)
        models = require("diffusers")
        self.device = device
        self.shape = found.form.shape
        self._form = found.form
        self._dtype = dtype_of(dtype)
        self._process = found.process.to(device)
        self.transitions = found.process.transitions
        network = _load(getattr(models, found.family.classes[0]), found.network)
        self._network = prepare(network, device=device, dtype=dtype, compiled=compile)
        self.compile = compile
        self._decoder: Decoder | None = None
        if found.decoder is not None:
            decoder = _load(getattr(models, found.family.decoder_class), found.decoder)
            self._decoder = Decoder(decoder, scale_of(found.decoder), device)
        self.decode_rows = 1 if self._decoder is None else DECODE_ROWS

    @staticmethod
    def info(name: str, *, dtype: str = "float32", compile: bool = False, **settings: Any) -> TargetInfo:
        """What can be told without building the network; arguments and errors as for the pipeline itself."""
        found = _described(name, dtype=dtype, **settings)
        form, parts = found.form, [found.network, *([found.decoder] if found.decoder else [])]
        count = None if form.classes is None else form.classes - (form.null_class is not None)
        space = "pixels" if found.decoder is None else "latents"
        return TargetInfo(
            name=name,
            description=f"{found.folder.kind} of diffusers, in {space}",
            shape=form.shape,
            num_classes=count,
            has_null_class=form.null_class is not None,
            takes_prompts=False,
            steps=len(found.process.transitions),
            licence=found.folder.licence(),
            weights_sha256=weights_sha256(parts),
            class_names=() if count is None else found.folder.class_names(count),
            takes_guidance=form.null_class is not None,
            config_sha256=configs_sha256([found.folder.scheduler(), *(part.config for part in parts)]),
            revision=found.revision,
        )

    def denoise(self, state: Tensor, step: Tensor, conditioning: dict[str, Tensor]) -> Tensor:
        """Clean images or latents, guided, clipped and thresholded as the pipeline says: float32 [rows, *shape]."""
        first = self.output(state, step, conditioning)
        second = self.output(state, step, self.unguided(conditioning)) if "guidance_scale" in conditioning else first
        return self.conclude(first, second, state, step, conditioning)

    def output(self, state: Tensor, step: Tensor, conditioning: dict[str, Tensor]) -> Tensor:
        """The network's prediction of noise, image or velocity, without what it says of a variance."""
        inputs = {"class_labels": conditioning["label"]} if "label" in conditioning else {}
        answer = self._network(state.to(self._dtype), self._process.timesteps[step], return_dict=False, **inputs)[0]
        return answer[:, : self.shape[0]].float()

    def conclude(
        self, first: Tensor, second: Tensor, state: Tensor, step: Tensor, conditioning: dict[str, Tensor]
    ) -> Tensor:
        """Guidance as in diffusers, second + scale · (first − second), on its way to x̂."""
        if "guidance_scale" in conditioning:
            scale = conditioning["guidance_scale"].view(-1, 1, 1, 1)
            # Where there is one row alone, second is first, and so is the sum.
            first = second + scale * (first - second)
        return self._process.clean(first, state, step)

    def guided(self, requests: Sequence[Request]) -> list[bool]:
        """Those with a scale other than 1 and a label: for the null class both rows would be the same."""
        return [_scale(request) != 1 and request.label is not None for request in requests]

    def unguided(self, conditioning: dict[str, Tensor]) -> dict[str, Tensor]:
        """The same with the null class."""
        assert self._form.null_class is not None
        return conditioning | {"label": torch.full_like(conditioning["label"], self._form.null_class)}

    def condition(self, requests: Sequence[Request]) -> dict[str, Tensor]:
        """``label``, int64 [rows], and ``guidance_scale``, float32 [rows], as far as the network takes them."""
        for request in requests:
            if problem := self._problem(request):
                raise ValueError(f"request {request.key!r}: {problem}")
        if self._form.classes is None:
            return {}
        null = self._form.null_class
        labels = [null if request.label is None else request.label for request in requests]
        conditioning = {"label": torch.tensor(labels, dtype=torch.int64, device=self.device)}
        if null is not None:
            scales = [_scale(request) for request in requests]
            conditioning["guidance_scale"] = torch.tensor(scales, dtype=torch.float32, device=self.device)
        return conditioning

    def decode(self, latents: Tensor) -> Tensor:
        """Levels, uint8 [rows, height, width, channels]."""
        return pixels(latents) if self._decoder is None else self._decoder(latents)

    def _problem(self, request: Request) -> str:
        """Why a request cannot be served, or ''."""
        form = self._form
        if request.prompt is not None or request.negative_prompt is not None:
            return "this model takes no prompts"
        if request.guidance_scale is not None and not math.isfinite(request.guidance_scale):
            return f"guidance_scale must be a number, not {request.guidance_scale}"
        if form.classes is None:
            return "this model has no classes" if request.label is not None else self._unguidable(request)
        count = form.classes - (form.null_class is not None)
        if request.label is None and form.null_class is None:
            return f"this model has no null class, so a label of 0 … {count - 1} is needed"
        if request.label is not None and request.label >= count:
            return f"label {request.label} is not in 0 … {count - 1}"
        return self._unguidable(request)

    def _unguidable(self, request: Request) -> str:
        if request.guidance_scale in (None, 1) or self._form.null_class is not None:
            return ""
        return "guidance needs a model with a null class, and this one has none"


def _scale(request: Request) -> float:
    return 1.0 if request.guidance_scale is None else float(request.guidance_scale)


def _described(
    name: str,
    *,
    dtype: str,
    revision: str | None = None,
    null_class: bool = False,
    steps: int | None = None,
    eta: float = 1.0,
    spacing: str | None = None,
    variance: str | None = None,
) -> _Described:
    dtype_of(dtype)
    require("diffusers")
    path, commit = locate(name, revision)
    folder = Folder(path)
    family = family_of(folder)
    network = folder.component(family.network)
    decoder = None if family.decoder is None else folder.component(family.decoder)
    form = form_of(network, null_class)
    made = process(folder.scheduler(), steps=steps, eta=eta, spacing=spacing, variance=variance, learned=form.learned)
    if made.timesteps.is_floating_point() and network.config.get("time_embedding_type") == "learned":
        raise ValueError("spacing karras steps between whole timesteps, and this network's table has only those")
    return _Described(folder, commit, family, network, decoder, form, made)


def _load(model: Any, component: Component) -> Any:
    """A network with its weights, in float32; a pickle is read with ``weights_only``, by which it cannot run code."""
    return model.from_pretrained(
        component.path,
        use_safetensors=component.safe,
        torch_dtype=torch.float32,
        local_files_only=True,
        low_cpu_mem_usage=False,  # which would need one more package
    )
