"""A network made ready to be sampled: evaluation mode, device, arithmetic, memory layout, compiler."""

from __future__ import annotations

from typing import TypeVar, cast

import torch
from torch import nn

Network = TypeVar("Network", bound=nn.Module)

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def prepare(network: Network, *, device: str, dtype: str = "float32", compiled: bool = False) -> Network:
    """The network without gradients, its parameters in ``dtype``; whoever calls it casts to that and back.

    Buffers (tables of frequencies and positions) keep their type, since what they say of the timestep would be coarse
    in 16 bits. Compilation is for one shape of batch, which is what the sampler calls with, and happens at the first
    call.

    Args:
        network: changed in place.
        device: torch device.
        dtype: ``float32``, ``bfloat16`` or ``float16``.
        compiled: whether ``torch.compile`` is used.

    Raises:
        ValueError: an unknown dtype.
    """
    kind = dtype_of(dtype)
    network.eval().requires_grad_(False).to(device)
    for parameter in network.parameters():
        parameter.data = parameter.data.to(kind)
    network.to(memory_format=torch.channels_last)
    return cast(Network, torch.compile(network, dynamic=False)) if compiled else network


def dtype_of(name: str) -> torch.dtype:
    """The type of that name. Raises ValueError for one that networks are not run in."""
    if name not in _DTYPES:
        raise ValueError(f"dtype must be {', '.join(_DTYPES)}, not {name!r}")
    return _DTYPES[name]
