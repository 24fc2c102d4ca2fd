"""Saved pipelines as targets: what is told of them, what is refused, labels and guidance by row, arithmetic."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import DDIMScheduler, DDPMScheduler, DiTPipeline
from pipelines import CLASSES, TRAIN, conditional, ddpm, dit, latent_dit, ldm
from safetensors.torch import load_file, save_file
from torch import Tensor

import specdiff
from pipeline.errors import Unavailable, UsageError
from pipeline.manifest import normalise
from pipeline.run import checked
from pipeline.spec import Job, differences, identity
from specdiff import Request, Sampler, inspect_target, load_target
from specdiff.targets import TargetUnavailable
from specdiff.targets.diffusers.process import process

VARIANCE = {"variance": "fixed_small"}


def asked(count: int = 8, **settings: Any) -> list[Request]:
    return [Request(str(i), i, **settings) for i in range(count)]


def test_what_is_told_without_building_a_network(tmp_path: Path) -> None:
    """Of every family; the hash of the weights is that of the file, which the hub shows, too."""
    plain = inspect_target(ddpm(tmp_path / "ddpm", size=8))
    assert (plain.shape, plain.steps, plain.num_classes, plain.takes_guidance) == ((1, 8, 8), TRAIN, None, False)
    weights = tmp_path / "ddpm" / "unet" / "diffusion_pytorch_model.safetensors"
    digest = subprocess.run(["sha256sum", weights], capture_output=True, text=True, check=True).stdout.split()[0]
    assert plain.weights_sha256 == digest
    assert plain.licence == "not stated"
    (tmp_path / "ddpm" / "README.md").write_text("---\nlicense: apache-2.0\ntags:\n- x\n---\n# Model\nlicense: no\n")
    assert inspect_target(str(tmp_path / "ddpm")).licence == "apache-2.0"

    labelled = conditional(tmp_path / "conditional")
    info = inspect_target(labelled)
    assert (info.num_classes, info.has_null_class, info.takes_guidance) == (CLASSES + 1, False, False)
    info = inspect_target(labelled, null_class=True)
    assert (info.num_classes, info.has_null_class, info.takes_guidance) == (CLASSES, True, True)

    folder = latent_dit(tmp_path / "dit", size=4, channels=2)
    edited(folder, "model_index.json", id2label={str(i): f"class {i}" for i in range(CLASSES)})
    info = inspect_target(folder, **VARIANCE)
    assert (info.shape, info.num_classes, info.has_null_class) == ((2, 4, 4), CLASSES, True)
    assert info.class_names == ("class 0", "class 1", "class 2")
    info = inspect_target(ldm(tmp_path / "ldm", size=4, channels=2))
    assert (info.shape, info.num_classes, info.description) == ((2, 4, 4), None, "LDMPipeline of diffusers, in latents")


def test_a_model_is_known_by_its_weights_and_configuration(tmp_path: Path) -> None:
    """Moved, it makes the same set; with other weights or another scheduler it does not, and the reason is named."""
    folder = ddpm(tmp_path / "a")

    def identity_of(folder: Path) -> dict[str, Any]:
        job = job_of(str(folder), {"range": {"count": 1}})
        return identity(job, checked(job)[0], 8, "")

    before = identity_of(tmp_path / "a")
    shutil.copytree(folder, tmp_path / "b")
    assert differences(before, identity_of(tmp_path / "b")) == []
    scheduler = tmp_path / "b" / "scheduler" / "scheduler_config.json"
    scheduler.write_text(scheduler.read_text().replace('"beta_end": 0.02', '"beta_end": 0.03'))
    (difference,) = differences(before, identity_of(tmp_path / "b"))
    assert difference.startswith("target.config_sha256: ")
    weights = tmp_path / "a" / "unet" / "diffusion_pytorch_model.safetensors"
    save_file({name: value * 2 for name, value in load_file(weights).items()}, weights, {"format": "pt"})
    (difference,) = differences(before, identity_of(tmp_path / "a"))
    assert difference.startswith("target.weights_sha256: ")


def job_of(name: str, manifest: dict[str, Any], **target: Any) -> Job:
    return Job.model_validate(
        {"name": "test", "target": {"name": name, **target}, "manifest": manifest, "output": {"uri": "unused"}}
    )


def test_case_3_labels_that_do_not_fit_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain.csv").write_text("seed\n1\n")
    (tmp_path / "labelled.csv").write_text("seed,label\n1,2\n2,3\n")
    (tmp_path / "guided.csv").write_text("seed,label,guidance_scale\n1,2,4.5\n")

    def refusal(folder: str, rows: str, **target: Any) -> str:
        job = job_of(folder, {"path": f"{rows}.csv"}, **target)
        with pytest.raises(UsageError) as caught:
            normalise(job, checked(job)[0])
        return str(caught.value)

    unconditional, classes, dit = ddpm(tmp_path / "a"), conditional(tmp_path / "b"), latent_dit(tmp_path / "c")
    assert "column `label`" in refusal(unconditional, "labelled")
    assert "has no classes" in refusal(unconditional, "labelled")
    assert "no column `label`" in refusal(classes, "plain")
    assert "labelled.csv:3: label: 3 is not a class; they go from 0 to 2" in refusal(dit, "labelled", **VARIANCE)
    assert "has no null class to steer away from" in refusal(classes, "guided")
    for name, rows_of, settings in (("c", "guided", VARIANCE), ("b", "guided", {"null_class": True})):
        job = job_of(str(tmp_path / name), {"path": f"{rows_of}.csv"}, **settings)
        assert normalise(job, checked(job)[0]).rows == 1


def test_requests_that_a_model_cannot_serve(tmp_path: Path) -> None:
    plain, classes = load_target(ddpm(tmp_path / "a")), load_target(conditional(tmp_path / "b"))
    for target, request, reason in (
        (plain, Request("k", 0, label=1), "has no classes"),
        (plain, Request("k", 0, prompt="a cat"), "takes no prompts"),
        (plain, Request("k", 0, guidance_scale=2.0), "guidance needs a model with a null class"),
        (classes, Request("k", 0), r"a label of 0 … 3 is needed"),
        (classes, Request("k", 0, label=4), r"label 4 is not in 0 … 3"),
        (classes, Request("k", 0, label=0, guidance_scale=float("nan")), "guidance_scale must be a number"),
    ):
        with pytest.raises(ValueError, match=f"request 'k': .*{reason}"):
            target.condition([request])


@pytest.mark.parametrize(
    "variance",
    ["fixed_small", "fixed_small_log", "fixed_large", "fixed_large_log", "learned", "learned_range", "fixed_medium"],
)
def test_case_4_every_variance_setting(tmp_path: Path, variance: str) -> None:
    """The right σ or a refusal by name with the remedy; never NaN."""
    folder = ddpm(tmp_path, DDPMScheduler(TRAIN))
    config = tmp_path / "scheduler" / "scheduler_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"variance_type": variance}))
    if variance.startswith("fixed_") and variance != "fixed_medium":
        target = load_target(folder, steps=10)
    else:
        with pytest.raises(ValueError, match=rf"variance_type '{variance}'.*set target.variance to fixed"):
            inspect_target(folder, steps=10)
        with pytest.raises(ValueError, match=f"'{variance}'"):
            load_target(folder, steps=10)
        target = load_target(folder, steps=10, variance="fixed_large")
    # By the formulas of Ho et al., section 3.2: β̃ and β of the steps taken.
    alpha_bar = DDPMScheduler(TRAIN).alphas_cumprod.double()[torch.arange(90, -1, -10)]
    following = torch.cat([alpha_bar[1:], torch.ones(1)])
    beta = 1 - alpha_bar / following
    small = (1 - following) / (1 - alpha_bar) * beta
    expected = beta if "large" in variance or not variance.endswith(("small", "log")) else small
    torch.testing.assert_close(target.transitions.sigma[:-1] ** 2, expected[:-1], rtol=1e-6, atol=1e-12)
    samples = Sampler(target, verification="none", lanes=4).sample(asked(4)).samples
    assert all(sample.error is None and bool(sample.latent.isfinite().all()) for sample in samples)  # type: ignore[union-attr]


def test_a_learned_variance_is_replaced_on_the_users_word_alone(tmp_path: Path) -> None:
    """A DiT has outputs for it, whatever its scheduler says; they are dropped."""
    folder = latent_dit(tmp_path / "dit")
    with pytest.raises(ValueError, match=r"outputs for a learned variance.*set target.variance"):
        load_target(folder)
    small, large = (load_target(folder, steps=20, variance=each) for each in ("fixed_small", "fixed_large"))
    assert (small.transitions.sigma[:-1] < large.transitions.sigma[:-1]).all()
    one_output = DiTPipeline(dit(learned=False), DiTPipeline.from_pretrained(folder).vae, DDIMScheduler(TRAIN))
    one_output.save_pretrained(tmp_path / "plain")
    assert inspect_target(str(tmp_path / "plain")).num_classes == CLASSES
    unet_of_two = ddpm(tmp_path / "unet", DDPMScheduler(TRAIN, variance_type="learned_range"), out_channels=2)
    assert load_target(unet_of_two, steps=10, **VARIANCE).shape == (1, 2, 2)


MIXED = [
    Request("guided", 0, label=0, guidance_scale=4.0),
    Request("plain", 1, label=1),
    Request("null", 2),
    Request("null-guided", 3, guidance_scale=4.0),
    Request("one", 4, label=2, guidance_scale=1.0),
    Request("zero", 5, label=2, guidance_scale=0.0),
    Request("strong", 6, label=1, guidance_scale=7.5),
    Request("also-plain", 7, label=0),
]


@pytest.mark.parametrize("verification", ["none", "block"])
@pytest.mark.parametrize("family", ["unet", "dit"])
def test_a_row_has_the_same_bytes_alone_and_in_mixed_company(tmp_path: Path, family: str, verification: str) -> None:
    """Guidance scales, labels and the null label in one manifest, in any order, at equal batch_rows."""
    if family == "unet":
        target = load_target(conditional(tmp_path), steps=12, null_class=True)
    else:
        target = load_target(latent_dit(tmp_path), steps=12, **VARIANCE)
    made: dict[str, tuple[bytes, bytes, int, int]] = {}
    orders = [MIXED, MIXED[::-1], *([each] for each in MIXED)]
    for lanes, order in zip([8, 3, *(1 for _ in MIXED)], orders, strict=True):
        sampler = Sampler(target, verification=verification, draft_length=3, lanes=lanes, batch_rows=8)
        for sample in sampler.stream(order):
            assert sample.image is not None
            assert sample.latent is not None
            facts = sample.image.tobytes(), sample.latent.numpy().tobytes(), sample.calls, sample.evaluations
            assert made.setdefault(sample.key, facts) == facts
    assert len({facts[0] for facts in made.values()}) == len(MIXED)


def test_guidance_expands_only_the_rows_that_ask_for_it(tmp_path: Path) -> None:
    """And its second rows are no evaluations; what a scale of 1 or a null label asks for is one row."""
    target = load_target(latent_dit(tmp_path), steps=10, **VARIANCE)
    rows = []

    class Counting:
        def __init__(self, target: Any) -> None:
            self.__dict__.update(target.__dict__)
            for name in ("denoise", "condition", "decode", "guided", "unguided", "conclude"):
                setattr(self, name, getattr(target, name))

        def output(self, state: Tensor, step: Tensor, conditioning: dict[str, Tensor]) -> Tensor:
            rows.append(len(state))
            return target.output(state, step, conditioning)  # type: ignore[attr-defined]

    sampler = Sampler(Counting(target), verification="none", lanes=8, batch_rows=4)  # type: ignore[arg-type]
    result = sampler.sample(MIXED)
    assert result.stats.evaluations == 80
    assert result.stats.guidance_rows == 3 * 10
    assert set(rows) == {4}
    assert result.stats.batched_calls == len(rows) == 10 * 3  # 11 states in calls of 4
    assert result.stats.padded_rows == 10
    assert Sampler(target, lanes=8).sample([each for each in MIXED if each.key == "one"]).stats.guidance_rows == 0


def test_guidance_is_what_the_target_does_by_itself(tmp_path: Path) -> None:
    """The sampler's path, in pieces, is ``denoise``."""
    target = load_target(latent_dit(tmp_path), steps=10, **VARIANCE)
    samples = Sampler(target, verification="none", lanes=8, record_steps=range(11)).sample(MIXED).samples
    conditioning = target.condition(MIXED)
    table = target.transitions
    for n in range(10):
        state = torch.stack([sample.states[n] for sample in samples])
        after = torch.stack([sample.states[n + 1] for sample in samples])
        clean = target.denoise(state, torch.full((8,), n), conditioning)
        if table.sigma[n] == 0:
            torch.testing.assert_close(after, table.a[n].float() * state + table.b[n].float() * clean)
    plain = [replace(each, guidance_scale=None) for each in MIXED]
    unguided = target.denoise(state, torch.full((8,), 9), target.condition(plain))
    changed = (clean - unguided).flatten(1).abs().amax(1) > 0
    assert changed.tolist() == target.guided(MIXED)  # type: ignore[attr-defined]


def test_latents_are_decoded_in_batches_of_one_size_outside_the_rounds(tmp_path: Path) -> None:
    """The decoder sees four rows at a time, and an image's bytes do not depend on which."""
    target = load_target(ldm(tmp_path, size=4), steps=8)
    shapes: list[int] = []
    decode = target.decode

    def counted(latents: Tensor) -> Tensor:
        shapes.append(len(latents))
        return decode(latents)

    target.decode = counted  # type: ignore[method-assign]
    sampler = Sampler(target, lanes=3)
    run = sampler.start()
    run.submit(asked(3))
    finished = []
    while run.busy:
        finished += run.round()
    assert shapes == []
    assert all(sample.image is None and sample.latent is not None for sample in finished)
    together = {sample.key: sample.image for sample in sampler.sample(asked(6)).samples}
    assert shapes == [4, 4]
    for sample in sampler.decode(finished):
        assert (sample.image == together[sample.key]).all()  # type: ignore[union-attr]
    streamed = list(sampler.stream(asked(6)))
    assert shapes == [4] * 5
    assert len(streamed) == 6
    assert all((sample.image == together[sample.key]).all() for sample in streamed)  # type: ignore[union-attr]


def test_an_image_that_cannot_be_decoded_fails_alone(tmp_path: Path) -> None:
    """Never a black picture."""
    target = load_target(ldm(tmp_path, size=4), steps=8)
    sampler = Sampler(target, lanes=4)
    samples = sampler.sample(asked(6)).samples
    broken = replace(samples[2], latent=torch.full((1, 4, 4), 1e38))
    found = sampler.decode([*samples[:2], broken, *samples[3:]])
    assert found[2].image is None
    assert found[2].error == "the decoder returned NaN or infinity"
    for i in (0, 1, 3, 4, 5):
        assert (found[i].image == samples[i].image).all()  # type: ignore[union-attr]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_dtype_is_the_networks_and_states_stay_float32(tmp_path: Path, dtype: str) -> None:
    for folder, settings in ((ddpm(tmp_path / "a"), {}), (latent_dit(tmp_path / "b"), VARIANCE), ("fashion-mnist", {})):
        precise, coarse = (load_target(folder, steps=10, dtype=each, **settings) for each in ("float32", dtype))
        state = torch.randn(4, *precise.shape, generator=torch.Generator().manual_seed(0))
        label = 1 if folder != str(tmp_path / "a") else None
        conditioning = precise.condition(asked(4, label=label))
        for n in (2, 9):
            step = torch.full((4,), n)
            one, other = (each.denoise(state, step, conditioning) for each in (precise, coarse))
            assert other.dtype == torch.float32
            difference = float((one - other).abs().max())
            assert 0 < difference < 0.1
    with pytest.raises(ValueError, match="dtype must be float32, bfloat16, float16, not 'int8'"):
        inspect_target("fashion-mnist", dtype="int8")


@pytest.mark.slow
def test_compiled_networks_draw_the_same_law(tmp_path: Path) -> None:
    """To rounding, from the same states; a UNet2DModel, and the built-in target's network."""
    for folder in (ddpm(tmp_path / "a"), "fashion-mnist"):
        plain, compiled = (load_target(folder, steps=10, compile=each) for each in (False, True))
        state = torch.randn(4, *plain.shape, generator=torch.Generator().manual_seed(0))
        conditioning = plain.condition(asked(4))
        step = torch.full((4,), 5)
        one, other = (each.denoise(state, step, conditioning) for each in (plain, compiled))
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


def test_the_layout_of_the_oldest_pipelines(tmp_path: Path) -> None:
    """As google/ddpm-cifar10-32 has it: network and scheduler beside model_index.json."""
    folder = Path(ddpm(tmp_path / "new"))
    before = inspect_target(str(folder))
    for part in ("unet", "scheduler"):
        for path in (folder / part).iterdir():
            path.rename(folder / path.name)
        (folder / part).rmdir()
    assert replace(inspect_target(str(folder)), name=before.name) == before
    assert load_target(str(folder), steps=5).shape == (1, 2, 2)


def test_a_pickle_is_loaded_as_weights_only(tmp_path: Path) -> None:
    folder = Path(ddpm(tmp_path / "model"))
    safe = folder / "unet" / "diffusion_pytorch_model.safetensors"
    expected = load_target(str(folder), steps=5).denoise(torch.ones(1, 1, 2, 2), torch.tensor([2]), {})
    torch.save(load_file(safe), safe.with_suffix(".bin"))
    safe.unlink()
    assert torch.equal(
        load_target(str(folder), steps=5).denoise(torch.ones(1, 1, 2, 2), torch.tensor([2]), {}), expected
    )
    mark = tmp_path / "mark"

    class Evil:
        def __reduce__(self) -> Any:
            return Path.touch, (mark,)

    torch.save({"weight": Evil()}, safe.with_suffix(".bin"))
    with pytest.raises(Exception, match=r"(?s)weights.only|Unsupported|WeightsUnpickler|Unable to load"):
        load_target(str(folder), steps=5)
    assert not mark.exists()


def edited(folder: str, path: str, **changes: Any) -> str:
    file = Path(folder, path)
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return folder


def test_what_cannot_be_sampled_is_refused_by_name(tmp_path: Path) -> None:
    unet, scheduler = "unet/config.json", "scheduler/scheduler_config.json"

    def fresh(name: str) -> str:
        return ddpm(tmp_path / name)

    for folder, reason in (
        (
            edited(fresh("a"), "model_index.json", _class_name="StableDiffusionPipeline"),
            "StableDiffusionPipeline cannot",
        ),
        (edited(fresh("b"), "model_index.json", _class_name=["mine", "Mine"]), "code of its own"),
        (edited(fresh("c"), "model_index.json", unet=["diffusers", "UNet1DModel"]), "whose unet is UNet1DModel cannot"),
        (edited(fresh("d"), unet, time_embedding_type="fourier"), "'fourier'.*specdiff.targets.EDM"),
        (edited(fresh("e"), unet, class_embed_type="timestep"), "class_embed_type 'timestep'"),
        (edited(fresh("f"), unet, sample_size=None), "sample_size"),
        (edited(fresh("i"), unet, sample_size=0), "sample_size must be one or two sizes of 1 or more, not 0"),
        (edited(fresh("j"), unet, sample_size="a"), "sample_size must be"),
        (edited(fresh("k"), scheduler, beta_start="x"), "beta_start must be a number, not 'x'"),
        (edited(fresh("l"), scheduler, clip_sample_range=-1), "clip_sample_range must be more than 0"),
        (edited(fresh("m"), scheduler, trained_betas=["a"]), "trained_betas must be numbers"),
        (edited(fresh("g"), unet, out_channels=3), "in_channels 1 and out_channels 3 is no denoiser"),
    ):
        with pytest.raises(ValueError, match=reason):
            inspect_target(folder)
    for part, reason in (
        ("model_index.json", "no model_index.json"),
        ("scheduler/scheduler_config.json", "has no scheduler/scheduler_config.json"),
        ("unet/config.json", "has no unet/config.json"),
        ("unet/diffusion_pytorch_model.safetensors", "has no weights"),
    ):
        folder = fresh(part.replace("/", "-"))
        Path(folder, part).unlink()
        with pytest.raises(ValueError, match=reason):
            inspect_target(folder)
    Path(fresh("h"), "scheduler", "scheduler_config.json").write_text("{")
    with pytest.raises(ValueError, match=r"scheduler_config.json cannot be read"):
        inspect_target(str(tmp_path / "h"))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"churn": 0.5}, "has no setting 'churn'"),
        ({"steps": 101}, "steps must lie between 1 and the model's 100"),
        ({"steps": 0}, "steps must lie between 1 and the model's 100"),
        ({"revision": "main"}, "'main' is for hub ids"),
        ({"null_class": True}, "null_class is for a UNet2DModel with num_class_embeds"),
        ({"spacing": "even"}, "'even'"),
    ],
)
def test_settings_that_are_refused(tmp_path: Path, settings: dict[str, Any], reason: str) -> None:
    folder = ddpm(tmp_path)
    for make in (inspect_target, load_target):
        with pytest.raises(ValueError, match=reason):
            make(folder, **settings)


def test_fractional_timesteps(tmp_path: Path) -> None:
    """Karras' spacing steps between the whole ones: right for a network of sines, refused for a table."""
    target = load_target(ddpm(tmp_path / "a"), steps=6, spacing="karras")
    assert Sampler(target, lanes=2).sample(asked(2)).stats.samples == 2
    table = ddpm(tmp_path / "b", time_embedding_type="learned", num_train_timesteps=TRAIN)
    assert load_target(table, steps=6).shape == (1, 2, 2)
    with pytest.raises(ValueError, match="spacing karras steps between whole timesteps"):
        inspect_target(table, steps=6, spacing="karras")


def test_steps_that_are_left_out_are_the_models_own() -> None:
    assert len(process({"_class_name": "DDPMScheduler"}).transitions) == 1000
    assert len(process({"_class_name": "DDIMScheduler"}).transitions) == 250
    assert len(process({"_class_name": "DDIMScheduler", "num_train_timesteps": 50}).transitions) == 50


def test_job_files_without_a_network(tmp_path: Path) -> None:
    """A clear error that says to try later, and no traceback."""
    jobs = [f"jobs/{job}.yaml" for job in ("ddpm-cifar10", "ddpm-celebahq", "ddpm-church", "dit-xl-256")]
    code = """
import sys
from click.testing import CliRunner
from pipeline.cli import main
for job in sys.argv[1:]:
    found = CliRunner().invoke(main, ["check", job], catch_exceptions=False)
    print(found.exit_code, found.output, end="")
"""
    environment = {"HF_HOME": str(tmp_path), "HF_ENDPOINT": "http://127.0.0.1:9", "PYTHONPATH": ":".join(sys.path)}
    command = [sys.executable, "-c", code, *jobs]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    told = rf"{Unavailable.exit_code} error: target: there is no folder \S+, the hub is out of reach"
    assert len(re.findall(told, found)) == len(found.splitlines()) == len(jobs)


def test_names_that_are_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    for name in ("./nothing", str(tmp_path / "nothing"), "a/b/c"):
        with pytest.raises(ValueError, match="there is no folder"):
            inspect_target(name)
    with pytest.raises(ValueError, match=r"has no model_index.json"):
        inspect_target(str(tmp_path))
    assert issubclass(TargetUnavailable, OSError)


def test_the_library_is_imported_only_when_it_is_needed() -> None:
    """And its absence is an error that says how to install it."""
    code = """
import sys
sys.modules["diffusers"] = sys.modules["huggingface_hub"] = None
import specdiff
specdiff.inspect_target("fashion-mnist")
for name in ("google/ddpm-cifar10-32", "."):
    try:
        specdiff.load_target(name)
    except ValueError as error:
        print(error)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.count("pip install 'specdiff[diffusers]'") == 2


def test_the_public_names() -> None:
    assert {"EDM", "Guided"} <= set(specdiff.targets.__all__)
