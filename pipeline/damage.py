"""Files of a data set that are not as they were written: half a file, or somebody else's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.errors import PipelineError
from pipeline.storage import Storage

_REMEDIES = {
    "job.json": "restore it, or make the set anew with output.overwrite",
    "manifest": "restore it, or make the set anew with output.overwrite",
    "commits/": "remove it, and `specdiff run` makes its rows again",
    "data/": "remove it and its record in commits/, and `specdiff run` makes its rows again",
    "lease/": "remove it if no driver is at work there",
    "failures.jsonl": "remove it, and `specdiff run` writes it anew",
}


@contextmanager
def reading(storage: Storage, path: str) -> Iterator[None]:
    """For the block that makes sense of one file of ours.

    Raises:
        PipelineError: the file is damaged, instead of what JSON, Parquet or our own look at it complain of.
    """
    try:
        yield
    except OSError as error:
        if error.errno is not None:  # Arrow's complaints of content have none
            raise
        raise PipelineError(_told(storage, path, error)) from error
    except (AttributeError, LookupError, NotImplementedError, TypeError, ValueError) as error:
        raise PipelineError(_told(storage, path, error)) from error


def _told(storage: Storage, path: str, error: Exception) -> str:
    why = next(iter(str(error).splitlines()), "")
    remedy = next((remedy for prefix, remedy in _REMEDIES.items() if path.startswith(prefix)), "restore it")
    return f"{storage.uri}/{path} is damaged ({type(error).__name__}: {why}); {remedy}"
