"""Times at which a cron expression runs, UTC, to the minute."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import cast

from cronsim import CronSim, CronSimError

_MINUTE = timedelta(minutes=1)


def problem(cron: str) -> str:
    """What is wrong with an expression, or ''."""
    if len(cron.split()) != 5:
        return "needs five fields: minute, hour, day of month, month, day of week, as in 0 2 * * * (02:00 every day)"
    try:
        next(after(cron, datetime(2000, 1, 1, tzinfo=timezone.utc)))
    except CronSimError as error:
        return f"{str(error).lower()} in {cron!r}; the fields are minute, hour, day of month, month, day of week"
    except StopIteration:
        return f"{cron!r} never runs"
    return ""


def after(cron: str, when: datetime) -> Iterator[datetime]:
    """The times later than `when`, the earliest first."""
    return cast("Iterator[datetime]", CronSim(cron, when))


def until(cron: str, when: datetime) -> Iterator[datetime]:
    """The times up to and including `when`, the latest first."""
    return cast("Iterator[datetime]", CronSim(cron, when.replace(second=0, microsecond=0) + _MINUTE, reverse=True))
