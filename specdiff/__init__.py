"""Speculative diffusion sampling with block verification and the Free Drafter (arXiv 2606.13426).

The law of what comes out is exactly that of the sequential sampler.
"""

from specdiff.gain import Gain, calibrate
from specdiff.pilots import Pilot, pilot
from specdiff.requests import Request, Sample
from specdiff.sampler import Result, Run, Sampler, check_settings
from specdiff.stats import Stats
from specdiff.targets import Target, TargetInfo, inspect_target, load_target, registered_targets
from specdiff.transitions import Transitions

__all__ = [
    "Gain",
    "Pilot",
    "Request",
    "Result",
    "Run",
    "Sample",
    "Sampler",
    "Stats",
    "Target",
    "TargetInfo",
    "Transitions",
    "calibrate",
    "check_settings",
    "inspect_target",
    "load_target",
    "pilot",
    "registered_targets",
]
__version__ = "0.1.0"
