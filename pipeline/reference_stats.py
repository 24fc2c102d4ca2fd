"""`specdiff stats`: statistics of a reference's images, in a file that jobs can name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import PurePath

import torch

from pipeline.extractors import load_extractor
from pipeline.picture_sources import open_source
from pipeline.references import make_reference
from pipeline.storage import Storage


def reference_stats(
    name: str, extractor: str, weights: str | None, output: str | None, say: Callable[[str], None]
) -> None:
    """Compute them and write the npz file.

    Args:
        name: a folder of images or Parquet, a Parquet file, a data set of ours, or `fashion-mnist`.
        extractor, weights: as in a job's `evaluate`.
        output: the file, local or ``s3://``; named after reference and extractor, in the current folder, if None.

    Raises:
        UsageError: there are no such images, or no such extractor.
        PipelineError: an image cannot be read or is not scored, or the weights cannot be had.
        Unavailable: the storage is out of reach.
    """
    path = output or f"{PurePath(name.rstrip('/')).stem}-{extractor}.npz"
    source = open_source(name)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    reference = make_reference(source, load_extractor(extractor, weights, device))
    folder, file = os.path.split(path)
    Storage(folder or ".").replace(file, reference.to_bytes())
    facts = reference.facts
    assert facts is not None
    formats = " and ".join(f"{count} {name}" for name, count in sorted(facts.formats.items()))
    say(f"images      {facts.count}: {formats}, {facts.resolution} pixels")
    say(f"extractor   {extractor}, {reference.gaussian.dimensions} features; images resized: {reference.resize}")
    if facts.count <= reference.gaussian.dimensions:
        say("note: no more images than features: too few to judge a set by")
    if reference.classes:
        say(f"classes     {len(reference.classes)}")
    say(f"written to  {path}")
