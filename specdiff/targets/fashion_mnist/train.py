"""Train the built-in target: ``python -m specdiff.targets.fashion_mnist.train``.

Noise levels are uniform in the angle φ of alpha = cos φ, noise_std = sin φ, up to and including pure noise, so that one
set of weights serves any number of steps.
"""

import argparse
import math
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from specdiff.targets.fashion_mnist.data import DEFAULT_FOLDER, load_split
from specdiff.targets.fashion_mnist.unet import NULL_CLASS, UNet

BATCH = 128
LEARNING_RATE = 1.5e-3
WARMUP = 500
EMA_DECAY = 0.9995
UNLABELLED = 0.1
SAVE_EVERY = 2000


def loss_of(network: UNet, images: Tensor, labels: Tensor, generator: torch.Generator) -> Tensor:
    """Mean squared error of the network's output before its scaling: float32 scalar.

    images float32 [rows, 1, 28, 28] in [−1, 1], labels int64 [rows].
    """
    rows = images.shape[0]
    stratified = (torch.arange(rows) + torch.rand(rows, generator=generator)) / rows
    angle = (1 - 0.999 * stratified) * math.pi / 2  # from pure noise down to noise_std 0.0016
    alpha, noise_std = angle.cos(), angle.sin()
    state = alpha[:, None, None, None] * images
    state = state + noise_std[:, None, None, None] * torch.randn(images.shape, generator=generator)
    labels = torch.where(torch.rand(rows, generator=generator) < UNLABELLED, NULL_CLASS, labels)
    scale = noise_std * network.data_std / torch.sqrt((alpha * network.data_std) ** 2 + noise_std**2)
    error = (network(state, alpha, noise_std, labels) - images) / scale[:, None, None, None]
    return error.float().square().mean()


def train(iterations: int, output: Path, folder: Path, seed: int) -> None:
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    pixels, classes = load_split("train", folder)
    images = torch.from_numpy(pixels.copy()).float()[:, None] / 127.5 - 1
    labels = torch.from_numpy(classes.copy()).long()

    network = UNet()
    averaged = {name: value.clone() for name, value in network.state_dict().items()}
    optimizer = torch.optim.AdamW(network.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.99), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda i: min(1.0, (i + 1) / WARMUP) * (0.5 + 0.5 * math.cos(math.pi * i / iterations)),
    )
    order = torch.empty(0, dtype=torch.long)
    recent, start = 0.0, time.monotonic()
    for iteration in range(1, iterations + 1):
        if len(order) < BATCH:
            order = torch.randperm(len(images), generator=generator)
        chosen, order = order[:BATCH], order[BATCH:]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(network, images[chosen], labels[chosen], generator)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        decay = min(EMA_DECAY, (1 + iteration) / (10 + iteration))
        for name, value in network.state_dict().items():
            averaged[name].lerp_(value, 1 - decay)
        recent += loss.item()
        if iteration % 200 == 0:
            print(f"{iteration} loss {recent / 200:.4f} after {(time.monotonic() - start) / 60:.1f} min", flush=True)
            recent = 0.0
        if iteration % SAVE_EVERY == 0 or iteration == iterations:
            save_file(averaged, output)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=11_000)
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("unet.safetensors"))
    parser.add_argument("--data", type=Path, default=DEFAULT_FOLDER)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    train(arguments.iterations, arguments.output, arguments.data, arguments.seed)
