"""The machine and the software that a measurement was made with."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import torch


def environment(device: torch.device) -> dict[str, dict[str, str | int | None]]:
    """Hardware with its driver, and versions; for the record of a measurement."""
    hardware: dict[str, str | int | None] = {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "architecture": platform.machine(),
    }
    software: dict[str, str | int | None] = {
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    if device.type == "cuda":
        hardware |= {"gpu": torch.cuda.get_device_name(device), "driver": _driver()}
        software["cuda"] = torch.version.cuda
    return {"hardware": hardware, "software": software}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")


def _driver() -> str | None:
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    command = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.split("\n")[0] or None
