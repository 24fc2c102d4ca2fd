"""Numbers and their nouns."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """'1 worker', '2 workers', '10,000 images'."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def flaws(failed: int, skipped: int) -> str:
    """'1 row failed, 2 were skipped as bad'."""
    return f"{counted(failed, 'row')} failed, {skipped} {'was' if skipped == 1 else 'were'} skipped as bad"
