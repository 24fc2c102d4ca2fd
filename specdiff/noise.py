"""One random stream per image: a counter-based generator, so that any number can be made on any device at any time.

Philox 4×32 with 10 rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011). The key is the
image's seed; the counter is (index within the draw, step, stream, purpose). So z_n, U_n and V_n are functions of
(seed, n, stream) alone.
"""

import math
from enum import IntEnum

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF


class Purpose(IntEnum):
    START = 0
    STEP = 1
    UNIFORM = 2
    ORTHOGONAL = 3
    CALIBRATION_START = 4
    CALIBRATION_STEP = 5


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Ten rounds of Philox 4×32.

    Args:
        counter: four int64 tensors that broadcast, each holding 32-bit words.
        key: two int64 tensors likewise.

    Returns:
        Four int64 tensors of 32-bit words.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        # The products wrap at 64 bits. Of c1 and c3 the lower half counts; what is above it is cut off after the xor.
        first, second = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = ((second >> 32) ^ c1 ^ k0) & _MASK, second, ((first >> 32) ^ c3 ^ k1) & _MASK, first
        k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
    return c0, c1 & _MASK, c2, c3 & _MASK


def normals(seed: Tensor, step: Tensor, stream: Tensor, size: int, purpose: Purpose = Purpose.STEP) -> Tensor:
    """Standard normal numbers (Box–Muller).

    Args:
        seed: int64 [...]; with step and stream, broadcast to [...].
        step: int64 [...], 0 … 2³²−1.
        stream: int64 [...], 0 … 2³²−1.
        size: how many numbers each.
        purpose: a part of the counter, so that different uses never share numbers.

    Returns:
        float32 [..., size].
    """
    index = torch.arange(-(-size // 4), device=seed.device)
    w0, w1, w2, w3 = philox(*_counter(index, seed, step, stream, purpose))
    # [..., 2, blocks]: 32 bits for the radius, so that its tail reaches 6.6 σ
    radius = torch.sqrt(-2 * torch.log((torch.stack([w0, w2], dim=-2).float() + 0.5) * 2.0**-32))
    angle = torch.stack([w1, w3], dim=-2).float() * (2 * math.pi * 2.0**-32)
    return torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)], dim=-2).flatten(-2)[..., :size]


def uniforms(seed: Tensor, step: Tensor, stream: Tensor) -> tuple[Tensor, Tensor]:
    """The step's two uniforms: U, which accepts, and V, which corrects.

    Args:
        seed, step, stream: int64 that broadcast to [...].

    Returns:
        Two float64 [...], strictly between 0 and 1 (52 bits).
    """
    index = torch.zeros((), dtype=torch.int64, device=seed.device)
    w0, w1, w2, w3 = philox(*_counter(index, seed, step, stream, Purpose.UNIFORM))
    return _unit(w0, w1).squeeze(-1), _unit(w2, w3).squeeze(-1)


def _counter(
    index: Tensor, seed: Tensor, step: Tensor, stream: Tensor, purpose: Purpose
) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]:
    seed, step, stream = (value.unsqueeze(-1) for value in torch.broadcast_tensors(seed, step, stream))
    return (index, step, stream, torch.full_like(step, int(purpose))), (seed & _MASK, (seed >> 32) & _MASK)


def _unit(high: Tensor, low: Tensor) -> Tensor:
    bits = (high << 20) | (low >> 12)  # 52 bits: with the half below, every value is exact and neither 0 nor 1
    return (bits.double() + 0.5) * 2.0**-52
