"""The sequential sampler is diffusers' own pipeline, and each of its steps is its scheduler's, given the same noise."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DDIMScheduler, DDPMPipeline, DDPMScheduler, DiTPipeline, LDMPipeline
from numpy.typing import NDArray
from pipelines import TRAIN, conditional, ddpm, drawing, latent_dit, ldm, noise
from torch import Tensor

import specdiff
from specdiff import Request, Sampler
from specdiff.targets.diffusers.process import Process, process, thresholded

SEEDS = list(range(5))


def ours(folder: str, asked: list[Request], **settings: Any) -> NDArray[np.uint8]:
    target = specdiff.load_target(folder, **settings)
    samples = Sampler(target, verification="none", lanes=len(asked)).sample(asked).samples
    assert all(sample.error is None for sample in samples)
    return np.stack([sample.image for sample in samples if sample.image is not None])


def assert_same_pictures(found: NDArray[np.uint8], expected: Any) -> None:
    levels = np.round(np.asarray(expected) * 255)
    assert np.abs(found - levels).max() <= 1
    assert found.std() > 10  # there is something to compare


def plain() -> list[Request]:
    return [Request(str(seed), seed) for seed in SEEDS]


@pytest.mark.parametrize("variance", ["fixed_small", "fixed_small_log", "fixed_large"])
def test_ddpm_pipeline(tmp_path: Path, variance: str) -> None:
    """With diffusers' own loop; at 13 steps, which do not divide 100."""
    folder = ddpm(tmp_path, DDPMScheduler(TRAIN, variance_type=variance), size=8)
    pipe = DDPMPipeline.from_pretrained(folder)
    pipe.set_progress_bar_config(disable=True)
    for steps in (TRAIN, 13):
        drawn = noise(SEEDS, (1, 8, 8), steps)
        with drawing(drawn):
            expected = pipe(len(SEEDS), num_inference_steps=steps, output_type="np").images
        assert_same_pictures(ours(folder, plain(), steps=steps), expected)


@pytest.mark.parametrize("eta", [0.0, 0.5, 1.0])
def test_ldm_pipeline(tmp_path: Path, eta: float) -> None:
    folder = ldm(tmp_path, size=4, channels=2)
    pipe = LDMPipeline.from_pretrained(folder)
    pipe.set_progress_bar_config(disable=True)
    drawn = noise(SEEDS, (2, 4, 4), 20)
    with drawing(drawn):
        expected = pipe(len(SEEDS), eta=eta, num_inference_steps=20, output_type="np").images
    assert_same_pictures(ours(folder, plain(), steps=20, eta=eta), expected)


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_dit_pipeline(tmp_path: Path, scale: float) -> None:
    """Its own loop is deterministic: η = 0. Its null class is written as 1000, which a small table has not."""
    folder = latent_dit(tmp_path, size=4, channels=2)
    pipe = DiTPipeline.from_pretrained(folder)
    pipe.set_progress_bar_config(disable=True)
    embed = pipe.transformer.transformer_blocks[0].norm1.emb.class_embedder.embedding_table
    forward = embed.forward
    embed.forward = lambda labels: forward(labels.clamp(max=3))
    labels = [seed % 3 for seed in SEEDS]
    with drawing(noise(SEEDS, (2, 4, 4), 20)):
        images = pipe(labels, guidance_scale=scale, num_inference_steps=20, output_type="np").images
    asked = [Request(str(s), s, label=label, guidance_scale=scale) for s, label in zip(SEEDS, labels, strict=True)]
    assert_same_pictures(ours(folder, asked, steps=20, eta=0.0, variance="fixed_small"), images)


def test_dit_with_noise_and_guidance(tmp_path: Path) -> None:
    """Its loop, but with η = 1 and DDIM's noise, and each row with a scale of its own."""
    folder = latent_dit(tmp_path, size=4, channels=2)
    pipe = DiTPipeline.from_pretrained(folder)
    labels, scales = torch.tensor([0, 1, 2, 0, 1]), torch.tensor([1.0, 2.0, 3.0, 0.0, 1.5])
    drawn = noise(SEEDS, (2, 4, 4), 20)
    state = drawn[0]
    pipe.scheduler.set_timesteps(20)
    with torch.no_grad():
        for t, z in zip(pipe.scheduler.timesteps, drawn[1:], strict=True):
            at = t.expand(5)
            first, second = (pipe.transformer(state, at, each).sample[:, :2] for each in (labels, torch.full((5,), 3)))
            output = second + scales.view(-1, 1, 1, 1) * (first - second)
            state = pipe.scheduler.step(output, t, state, eta=1.0, variance_noise=z).prev_sample
        images = (pipe.vae.decode(state / pipe.vae.config.scaling_factor).sample / 2 + 0.5).clamp(0, 1)
    asked = [Request(str(i), i, label=int(labels[i]), guidance_scale=float(scales[i])) for i in SEEDS]
    found = ours(folder, asked, steps=20, variance="fixed_small")
    assert_same_pictures(found, images.permute(0, 2, 3, 1).numpy())


def test_class_conditional_unet(tmp_path: Path) -> None:
    """diffusers has no pipeline for it: its network and scheduler in the usual loop."""
    folder = conditional(tmp_path, DDPMScheduler(TRAIN))
    pipe = DDPMPipeline.from_pretrained(folder)
    labels = torch.tensor([0, 1, 2, 3, 0])
    drawn = noise(SEEDS, (1, 2, 2), 25)
    pipe.scheduler.set_timesteps(25)
    state = drawn[0]
    with torch.no_grad(), drawing(drawn[1:]):
        for t in pipe.scheduler.timesteps:
            state = pipe.scheduler.step(pipe.unet(state, t, labels).sample, t, state).prev_sample
    asked = [Request(str(i), i, label=int(labels[i])) for i in SEEDS]
    assert_same_pictures(ours(folder, asked, steps=25), ((state / 2 + 0.5).clamp(0, 1)).permute(0, 2, 3, 1).numpy())


PREDICTIONS = ["epsilon", "sample", "v_prediction"]
SPACINGS = ["leading", "trailing", "linspace"]
BETAS = ["linear", "scaled_linear", "squaredcos_cap_v2", "sigmoid"]
BOUNDS: dict[str, dict[str, Any]] = {
    "free": {"clip_sample": False},
    "clipped": {"clip_sample": True, "clip_sample_range": 0.7},
    "thresholded": {"thresholding": True, "dynamic_thresholding_ratio": 0.6, "sample_max_value": 1.7},
}


def step(found: Process, n: int, output: Tensor, state: Tensor, z: Tensor) -> Tensor:
    """Our step, as the sampler makes it."""
    table = found.transitions
    clean = found.clean(output, state, torch.full((len(state),), n))
    a, b, sigma = (float(each[n]) for each in (table.a, table.b, table.sigma))
    return a * state + b * clean + sigma * z


def assert_same_steps(theirs: Any, steps: int, options: dict[str, Any], **settings: Any) -> None:
    """Every step from random states with random outputs: the mean, and with noise the standard deviation."""
    found = process({"_class_name": type(theirs).__name__, **theirs.config}, steps=steps, **settings)
    theirs.set_timesteps(steps)
    generator = torch.Generator().manual_seed(0)
    for n, t in enumerate(theirs.timesteps):
        assert found.timesteps[n] == t
        state, output, z = torch.randn(3, 4, 1, 5, 5, generator=generator)
        for drawn in (torch.zeros_like(z), z):
            with drawing([drawn]):
                expected = theirs.step(output, t, state, **options).prev_sample
            mine = step(found, n, output, state, drawn)
            # diffusers rounds 1 − ᾱ and the like in float32, then divides by them
            scale = float(expected.abs().max().clamp(min=1))
            torch.testing.assert_close(mine, expected, rtol=0, atol=2e-5 * scale)


@pytest.mark.parametrize("bound", list(BOUNDS))
@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_every_setting_of_ddpm_scheduler(prediction: str, bound: str) -> None:
    for beta, spacing, variance in product(BETAS, SPACINGS, ["fixed_small", "fixed_small_log", "fixed_large"]):
        theirs = DDPMScheduler(
            TRAIN, beta_schedule=beta, timestep_spacing=spacing, variance_type=variance, prediction_type=prediction,
            **BOUNDS[bound],
        )  # fmt: skip
        assert_same_steps(theirs, 10, {})


@pytest.mark.parametrize("bound", list(BOUNDS))
@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_every_setting_of_ddim_scheduler(prediction: str, bound: str) -> None:
    for beta, spacing, to_one, eta in product(BETAS[:3], SPACINGS, [True, False], [0.0, 0.6]):
        theirs = DDIMScheduler(
            TRAIN, beta_schedule=beta, timestep_spacing=spacing, set_alpha_to_one=to_one, prediction_type=prediction,
            steps_offset=1, **BOUNDS[bound],
        )  # fmt: skip
        assert_same_steps(theirs, 10, {"eta": eta, "use_clipped_model_output": True}, eta=eta)


@pytest.mark.parametrize("spacing", ["trailing", "linspace"])
def test_zero_terminal_snr(spacing: str) -> None:
    settings: dict[str, Any] = {"rescale_betas_zero_snr": True, "timestep_spacing": spacing}
    for prediction in ("sample", "v_prediction"):
        assert_same_steps(DDPMScheduler(TRAIN, prediction_type=prediction, **settings), 10, {})
    theirs = DDPMScheduler(TRAIN, **settings)
    with pytest.raises(ValueError, match=r"'epsilon'.*zero signal-to-noise ratio; use a model"):
        process({"_class_name": "DDPMScheduler", **theirs.config}, steps=10)


def test_trained_betas() -> None:
    betas = torch.linspace(1e-3, 0.05, TRAIN).tolist()
    assert_same_steps(DDPMScheduler(TRAIN, trained_betas=betas), 10, {})
    with pytest.raises(ValueError, match="trained_betas are 50, and num_train_timesteps is 100"):
        process({"_class_name": "DDPMScheduler", "trained_betas": betas[:50], "num_train_timesteps": 100})


def test_the_clean_prediction_is_diffusers_own() -> None:
    """To float32 rounding, where no coefficient of a step enlarges it."""
    for kind, prediction in product((DDPMScheduler, DDIMScheduler), PREDICTIONS):
        theirs = kind(TRAIN, prediction_type=prediction, clip_sample=False)
        theirs.set_timesteps(TRAIN)
        found = process({"_class_name": kind.__name__, **theirs.config}, steps=TRAIN)
        generator = torch.Generator().manual_seed(0)
        for n, t in enumerate(theirs.timesteps):
            state, output = torch.randn(2, 4, 1, 3, 3, generator=generator)
            with drawing([torch.zeros_like(state)]):
                expected = theirs.step(output, t, state).pred_original_sample
            clean = found.clean(output, state, torch.full((4,), n))
            torch.testing.assert_close(clean, expected, rtol=2e-5, atol=2e-5)


def test_thresholding_does_not_depend_on_company() -> None:
    clean = 3 * torch.randn(7, 2, 5, 5, generator=torch.Generator().manual_seed(0))
    together = thresholded(clean, 0.995, 1.5)
    for i in range(7):
        assert torch.equal(thresholded(clean[i : i + 1], 0.995, 1.5)[0], together[i])
    assert float(together.abs().max()) == 1
    assert not torch.equal(together, clean.clamp(-1, 1))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "scheduler": (
        {"_class_name": "PNDMScheduler"},
        "PNDMScheduler cannot be sampled.*DDPMScheduler.from_config",
    ),
    "beta_schedule": ({"beta_schedule": "laplace"}, "'laplace'"),
    "prediction_type": ({"prediction_type": "flow_prediction"}, "'flow_prediction'"),
    "timestep_spacing": ({"timestep_spacing": "even"}, "'even'"),
    "steps_offset": ({"steps_offset": 5}, "steps_offset 5"),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_diffusers_may_say_and_cannot_be_sampled_is_refused_by_its_name(name: str) -> None:
    config, reason = REFUSED[name]
    with pytest.raises(ValueError, match=reason):
        process({"_class_name": "DDPMScheduler", "num_train_timesteps": TRAIN} | config)


SETTINGS: list[tuple[Callable[[], Process], str]] = [
    (lambda: process({"_class_name": "DDPMScheduler"}, steps=1001), "steps must lie between 1 and the model's 1000"),
    (lambda: process({"_class_name": "DDPMScheduler"}, eta=0.5, variance="fixed_large"), "leave one out"),
    (lambda: process({"_class_name": "DDPMScheduler"}, variance="large"), "variance must be fixed_small or"),
]


@pytest.mark.parametrize(("make", "reason"), SETTINGS)
def test_settings_out_of_range(make: Callable[[], Process], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        make()
