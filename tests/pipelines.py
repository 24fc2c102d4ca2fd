"""Small diffusers pipelines of every family with random weights, and the noise of our images for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from diffusers import (
    AutoencoderKL,
    DDIMScheduler,
    DDPMPipeline,
    DDPMScheduler,
    DiTPipeline,
    DiTTransformer2DModel,
    LDMPipeline,
    UNet2DModel,
    VQModel,
)
from torch import Tensor

from specdiff.noise import Purpose, normals

TRAIN = 100
CLASSES = 3


def unet(channels: int = 1, size: int = 2, **settings: Any) -> UNet2DModel:
    """The smallest that the architecture takes."""
    return UNet2DModel(
        sample_size=size,
        in_channels=channels,
        out_channels=settings.pop("out_channels", channels),
        block_out_channels=(8,),
        layers_per_block=1,
        down_block_types=("DownBlock2D",),
        up_block_types=("UpBlock2D",),
        norm_num_groups=4,
        attention_head_dim=4,
        **settings,
    )


def dit(channels: int = 1, size: int = 2, learned: bool = True) -> DiTTransformer2DModel:
    """A transformer whose blocks do something, which those of a new one do not."""
    return DiTTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=4,
        in_channels=channels,
        out_channels=2 * channels if learned else channels,
        num_layers=1,
        sample_size=size,
        patch_size=1,
        num_embeds_ada_norm=CLASSES,
    )


def ddpm(folder: Path, scheduler: Any = None, **settings: Any) -> str:
    """Unconditional, in pixels."""
    torch.manual_seed(0)
    DDPMPipeline(unet(**settings), scheduler or DDPMScheduler(TRAIN)).save_pretrained(folder)
    return str(folder)


def conditional(folder: Path, scheduler: Any = None) -> str:
    """With three classes and a fourth that can stand for none."""
    return ddpm(folder, scheduler, num_class_embeds=CLASSES + 1)


def latent_dit(folder: Path, scheduler: Any = None, *, size: int = 2, channels: int = 1) -> str:
    """With three classes, a null class, a learned variance, and a VAE that doubles the sides."""
    torch.manual_seed(1)
    vae = AutoencoderKL(
        latent_channels=channels,
        block_out_channels=(4, 4),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        norm_num_groups=2,
        sample_size=2 * size,
        scaling_factor=0.5,
    )
    scheduler = scheduler or DDIMScheduler(TRAIN, clip_sample=False)
    DiTPipeline(dit(channels, size), vae, scheduler).save_pretrained(folder)
    return str(folder)


def ldm(folder: Path, scheduler: Any = None, *, size: int = 2, channels: int = 1) -> str:
    """Unconditional, in the latents of a vector-quantised autoencoder."""
    torch.manual_seed(2)
    vqvae = VQModel(
        latent_channels=channels,
        block_out_channels=(4, 4),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        norm_num_groups=2,
        sample_size=2 * size,
        num_vq_embeddings=16,
    )
    scheduler = scheduler or DDIMScheduler(TRAIN, clip_sample=False)
    LDMPipeline(vqvae, unet(channels, size), scheduler).save_pretrained(folder)
    return str(folder)


def noise(seeds: list[int], shape: tuple[int, ...], steps: int) -> list[Tensor]:
    """What our sampler starts the images with, and what it adds at each step."""
    seed, zero = torch.tensor(seeds), torch.zeros(len(seeds), dtype=torch.int64)
    size = torch.Size(shape).numel()
    drawn = [normals(seed, zero, zero, size, Purpose.START)]
    drawn += [normals(seed, zero + n, zero, size) for n in range(steps)]
    return [each.view(-1, *shape) for each in drawn]


@contextmanager
def drawing(drawn: list[Tensor]) -> Iterator[None]:
    """diffusers' pipelines and schedulers draw this noise, in this order."""
    waiting = iter(drawn)
    places = (
        "diffusers.pipelines.ddpm.pipeline_ddpm",
        "diffusers.pipelines.dit.pipeline_dit",
        "diffusers.pipelines.deprecated.latent_diffusion_uncond.pipeline_latent_diffusion_uncond",
        "diffusers.schedulers.scheduling_ddpm",
        "diffusers.schedulers.scheduling_ddim",
    )
    with ExitStack() as stack:
        for place in places:
            stack.enter_context(patch(f"{place}.randn_tensor", lambda *_, **__: next(waiting)))
        yield
