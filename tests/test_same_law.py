"""Samplers are of one law where they must be, and a biased one is found: `docs/records/same-law.json`, smaller."""

from __future__ import annotations

import pytest
from same_law import band, features

IMAGES = 400


@pytest.mark.slow
def test_block_is_sequential_and_a_biased_sampler_is_not() -> None:
    """A right sampler fails this once in 100 times (the band's false-alarm rate; seeds are fixed)."""
    sequential = features("sequential", IMAGES, 0)
    assert band(sequential, features("block", IMAGES, 10_000_000)).same
    assert not band(sequential, features("biased", IMAGES, 30_000_000)).same
