"""The run date in a path: filled in for a run, and read back from the folders that runs have left."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timezone

from pipeline.storage import Storage

# Placeholder → its form (strftime), a pattern for it, and what it tells of the time.
_FORMS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "date": ("%Y-%m-%d", r"\d{4}-\d\d-\d\d", ("year", "month", "day")),
    "datetime": ("%Y-%m-%dT%H%MZ", r"\d{4}-\d\d-\d\dT\d{4}Z", ("year", "month", "day", "hour", "minute")),
    "year": ("%Y", r"\d{4}", ("year",)),
    "month": ("%m", r"\d\d", ("month",)),
    "day": ("%d", r"\d\d", ("day",)),
    "hour": ("%H", r"\d\d", ("hour",)),
    "minute": ("%M", r"\d\d", ("minute",)),
}
KNOWN = ", ".join(f"{{{name}}}" for name in _FORMS)
_PLACEHOLDER = re.compile(r"\{([^{}/]*)\}")


def placeholders(text: str) -> list[str]:
    """The names in braces, known or not."""
    return _PLACEHOLDER.findall(text)


def is_known(name: str) -> bool:
    return name in _FORMS


def fill(text: str, when: datetime) -> str:
    """The text with its (known) placeholders replaced by a time."""
    return _PLACEHOLDER.sub(lambda match: when.strftime(_FORMS[match[1]][0]), text)


def told(text: str, when: datetime) -> datetime:
    """What the text tells of a time: the minute, the hour, or the day (at 00:00)."""
    fields = _fields(text)
    minute = when.minute if "minute" in fields else 0
    return when.replace(hour=when.hour if "hour" in fields else 0, minute=minute, second=0, microsecond=0)


def tells_the_day(text: str) -> bool:
    return _fields(text) >= {"year", "month", "day"}


def tells_the_hour(text: str) -> bool:
    return "hour" in _fields(text)


def _fields(text: str) -> set[str]:
    return {field for name in placeholders(text) for field in _FORMS[name][2]}


def folders(pattern: str) -> tuple[Storage, dict[datetime, str]]:
    """The folders that a path with placeholders may stand for.

    Returns:
        The folder above them all, and the path within it of each, by what it tells of its time (UTC). The last
        parts of a path may not be there, where no placeholder is in them.

    Raises:
        Unavailable: the storage is out of reach.
    """
    parts = Storage(pattern).uri.split("/")
    fixed = next(number for number, part in enumerate(parts) if placeholders(part))
    storage, patterns = Storage("/".join(parts[:fixed]) or "/"), parts[fixed:]
    found = {when: path for path in _matching(storage, "", patterns) if (when := _read(patterns, path)) is not None}
    return storage, found


def _matching(storage: Storage, at: str, patterns: list[str]) -> Iterator[str]:
    """Paths below the folder `at` that match part by part."""
    if not patterns:
        yield at.rstrip("/")
        return
    if placeholders(patterns[0]):
        names = list(filter(_expression(patterns[0]).fullmatch, storage.folders(at)))
    else:
        names = [patterns[0]]
    for name in names:
        yield from _matching(storage, f"{at}{name}/", patterns[1:])


def _expression(part: str) -> re.Pattern[str]:
    pieces = _PLACEHOLDER.split(part)  # text, name, text, name, …
    return re.compile(
        "".join(f"({_FORMS[piece][1]})" if number % 2 else re.escape(piece) for number, piece in enumerate(pieces))
    )


def _read(patterns: list[str], path: str) -> datetime | None:
    """The time that a matching path tells, or None where its parts contradict each other or the calendar."""
    pattern = "/".join(patterns)
    match = _expression(pattern).fullmatch(path)
    fields = {"year": 1, "month": 1, "day": 1}
    try:
        for name, text in zip(placeholders(pattern), match.groups() if match else (), strict=True):
            form, _, tells = _FORMS[name]
            value = datetime.strptime(text, form)
            fields |= {field: getattr(value, field) for field in tells}
        when = datetime(**fields, tzinfo=timezone.utc)
    except ValueError:
        return None
    return when if fill(pattern, when) == path else None
