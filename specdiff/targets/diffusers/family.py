"""Which pipelines can be sampled, and what each is made of."""

from __future__ import annotations

from dataclasses import dataclass

from specdiff.targets.diffusers.folder import Component, Config, Folder


@dataclass(frozen=True)
class Family:
    """Pipelines with the same parts.

    Attributes:
        network: name of the component that denoises.
        classes: of that component in ``model_index.json``, the first of which is what it is loaded as.
        decoder: name of the component that turns latents into pixels; None where the network draws pixels.
        decoder_class: its class.
    """

    network: str
    classes: tuple[str, ...]
    decoder: str | None = None
    decoder_class: str = ""


PIXELS = Family("unet", ("UNet2DModel",))
FAMILIES = {
    "DDPMPipeline": PIXELS,
    "DDIMPipeline": PIXELS,
    "LDMPipeline": Family("unet", ("UNet2DModel",), "vqvae", "VQModel"),
    "DiTPipeline": Family("transformer", ("DiTTransformer2DModel", "Transformer2DModel"), "vae", "AutoencoderKL"),
}


def family_of(folder: Folder) -> Family:
    """The family of a pipeline. Raises ValueError where there is none for it."""
    family = FAMILIES.get(folder.kind)
    if family is None:
        raise ValueError(f"a {folder.kind} cannot be sampled here; what can: {', '.join(FAMILIES)}")
    for name, classes in ((family.network, family.classes), (family.decoder, (family.decoder_class,))):
        if name is not None and folder.class_of(name) not in classes:
            raise ValueError(
                f"a {folder.kind} whose {name} is {folder.class_of(name) or 'not there'} cannot be sampled here, only "
                f"one with {' or '.join(classes)}"
            )
    return family


@dataclass(frozen=True)
class Form:
    """What a network's configuration says of its inputs and outputs.

    Attributes:
        shape: channels, height, width of a state.
        learned: whether it has outputs for a variance after those for the image.
        classes: rows of its table of classes, the null class included; None without classes.
        null_class: the row that stands for no class; None where there is none.
    """

    shape: tuple[int, int, int]
    learned: bool
    classes: int | None
    null_class: int | None


def form_of(component: Component, null_class: bool) -> Form:
    """The form of a UNet2DModel or a DiTTransformer2DModel.

    Args:
        null_class: whether the last class of a UNet2DModel stands for no class, which its configuration does not say.

    Raises:
        ValueError: a network that cannot be sampled, by the name of the setting, or ``null_class`` where there is no
            table of classes.
    """
    config = component.config
    size, channels = config.get("sample_size"), int(config.get("in_channels", 3))
    if size is None:
        raise ValueError(f"{component.path}/config.json says no sample_size, so the size of the pictures is unknown")
    sides = [size, size] if isinstance(size, int) else size
    if not (
        isinstance(sides, (list, tuple)) and len(sides) == 2 and all(type(side) is int and side > 0 for side in sides)
    ):
        raise ValueError(
            f"{component.path}/config.json: sample_size must be one or two sizes of 1 or more, not {size!r}"
        )
    outputs = int(config.get("out_channels") or channels)
    if outputs not in (channels, 2 * channels):
        raise ValueError(f"a network with in_channels {channels} and out_channels {outputs} is no denoiser")
    is_dit = "num_embeds_ada_norm" in config
    classes, null = _dit_classes(config) if is_dit else _unet_classes(config, null_class)
    if null_class and (is_dit or classes is None):
        raise ValueError("null_class is for a UNet2DModel with num_class_embeds; leave it out")
    return Form((channels, *sides), outputs == 2 * channels, classes, null)


def _dit_classes(config: Config) -> tuple[int, int]:
    count = int(config["num_embeds_ada_norm"])
    return count + 1, count


def _unet_classes(config: Config, null_class: bool) -> tuple[int | None, int | None]:
    if config.get("time_embedding_type", "positional") == "fourier":
        raise ValueError(
            "time_embedding_type 'fourier' is of score models in σ, which neither DDPM nor DDIM steps fit; wrap the "
            "network in specdiff.targets.EDM"
        )
    kind = config.get("class_embed_type")
    if kind is not None:
        raise ValueError(f"class_embed_type {kind!r} takes no class numbers, so rows with labels cannot be served")
    count = config.get("num_class_embeds")
    if count is None:
        return None, None
    if null_class and int(count) < 2:
        raise ValueError("null_class needs a network with num_class_embeds of 2 or more")
    return int(count), int(count) - 1 if null_class else None
