"""Train the classifier: ``python -m specdiff.targets.fashion_mnist.train_classifier``, a few minutes on one core.

The reference statistics beside its weights then follow by ``specdiff stats fashion-mnist --extractor fashion-mnist``.
The same seed, thread count and software give the same weights.
"""

import argparse
import json
import math
import time
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from specdiff.targets.fashion_mnist.classifier import WEIGHTS, Classifier
from specdiff.targets.fashion_mnist.data import DEFAULT_FOLDER, load_split

BATCH = 128
LEARNING_RATE = 4e-3
WARMUP = 200
WEIGHT_DECAY = 0.02
LABEL_SMOOTHING = 0.05
SHIFT = 1
EVALUATION_BATCH = 500


def shifted(images: Tensor, generator: torch.Generator) -> Tensor:
    """A batch moved by up to SHIFT pixels, all rows alike, over black: uint8 [rows, 1, 28, 28], the same shape."""
    padded = functional.pad(images, (SHIFT,) * 4)
    down, right = torch.randint(2 * SHIFT + 1, (2,), generator=generator).tolist()
    return padded[:, :, down : down + images.shape[2], right : right + images.shape[3]]


def as_tensors(split: str, folder: Path) -> tuple[Tensor, Tensor]:
    """Images, uint8 [count, 1, 28, 28], and labels, int64 [count]."""
    pixels, labels = load_split(split, folder)
    return torch.from_numpy(pixels.copy())[:, None], torch.from_numpy(labels.copy()).long()


def train(images: Tensor, labels: Tensor, epochs: int, seed: int) -> Classifier:
    """Train on images, uint8 [count, 1, 28, 28], and labels, int64 [count], of which a last odd batch is left out."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    network = Classifier().to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(network.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    total = epochs * (len(images) // BATCH)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda i: min(1.0, (i + 1) / WARMUP) * (0.5 + 0.5 * math.cos(math.pi * i / total))
    )
    start = time.monotonic()
    for epoch in range(1, epochs + 1):
        order = torch.randperm(len(images), generator=generator)
        recent = 0.0
        for first in range(0, len(order) - BATCH + 1, BATCH):
            chosen = order[first : first + BATCH]
            logits = network(shifted(images[chosen], generator))
            loss = functional.cross_entropy(logits, labels[chosen], label_smoothing=LABEL_SMOOTHING)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
            recent += loss.item() * BATCH / len(order)
        print(f"epoch {epoch} loss {recent:.4f} after {(time.monotonic() - start) / 60:.1f} min", flush=True)
    return network.eval().requires_grad_(False)


def features_of(network: Classifier, images: Tensor) -> NDArray[np.float64]:
    """Features of any number of images, uint8 [count, 1, 28, 28]: computed in float32, float64 [count, 64]."""
    return torch.cat([network.features(part) for part in torch.split(images, EVALUATION_BATCH)]).double().numpy()


def accuracy_of(network: Classifier, images: Tensor, labels: Tensor) -> float:
    """Share of images whose highest score is their label's."""
    guesses = torch.cat([network(part).argmax(dim=1) for part in torch.split(images, EVALUATION_BATCH)])
    return (guesses == labels).double().mean().item()


def save(network: Classifier, facts: dict[str, float], output: Path) -> None:
    """Write the weights, with facts about them under the one key ``training``: several keys have no fixed order."""
    tensors = {name: value.contiguous() for name, value in network.state_dict().items()}
    save_file(tensors, output, {"training": json.dumps(facts)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--output", type=Path, default=WEIGHTS)
    parser.add_argument("--data", type=Path, default=DEFAULT_FOLDER)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    network = train(*as_tensors("train", arguments.data), arguments.epochs, arguments.seed)
    images, labels = as_tensors("t10k", arguments.data)
    accuracy = accuracy_of(network, images, labels)
    print(f"accuracy on the {len(images)} test images: {accuracy:.4f}")
    save(network, {"test_accuracy": accuracy, "epochs": arguments.epochs, "seed": arguments.seed}, arguments.output)


if __name__ == "__main__":
    main()
