"""Schedules: run dates in paths, what is due, whose seeds, and that no sequence of events loses or mixes a set."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline import cron, dates
from pipeline.dated_job import name_of, parse_run, resolved, run_of
from pipeline.errors import UsageError
from pipeline.schedule import State, due, surplus, upcoming
from pipeline.spec import Job, ScheduleSpec, load_job

DAY = timedelta(days=1)
NIGHTLY = "0 2 * * *"


def at(day: int, hour: int = 0, minute: int = 0) -> datetime:
    """A time in March 2026."""
    return datetime(2026, 3, day, hour, minute, tzinfo=timezone.utc)


def scheduled(uri: str = "out/{date}", path: str | None = None, count: int = 10, **schedule: Any) -> Job:
    rows = {"range": {"count": count, "labels": "cycle"}} if path is None else {"path": path}
    return Job.model_validate(
        {
            "name": "nightly",
            "target": {"name": "fashion-mnist"},
            "manifest": rows,
            "output": {"uri": uri},
            "schedule": {"cron": NIGHTLY, **schedule},
        }
    )


def runs_due(now: datetime, past: dict[datetime, State], **schedule: Any) -> list[datetime]:
    job = scheduled(**schedule)
    assert job.schedule is not None
    return due(job.schedule, now, past, partial(run_of, job))


def test_cron_times_are_minutes_up_to_now() -> None:
    assert next(cron.until(NIGHTLY, at(5, 2))) == at(5, 2)
    assert next(cron.until(NIGHTLY, at(5, 2) - timedelta(microseconds=1))) == at(4, 2)
    assert next(cron.after(NIGHTLY, at(5, 2))) == at(6, 2)
    assert upcoming(ScheduleSpec(cron="30 1 1 * *"), at(5), 1) == [datetime(2026, 4, 1, 1, 30, tzinfo=timezone.utc)]


def test_the_newest_run_is_always_due_and_the_last() -> None:
    assert runs_due(at(5, 1), {}) == [at(4)]
    assert runs_due(at(5, 2), {}) == [at(5)]
    assert runs_due(at(5, 23), {at(5): "finished"}) == [at(5)]
    assert runs_due(at(9, 3), {at(5): "finished"}) == [at(9)]


def test_missed_runs_are_caught_up_from_the_oldest_set_on() -> None:
    past: dict[datetime, State] = {at(3): "finished", at(5): "finished"}
    assert runs_due(at(8, 3), past, missed="catch_up") == [at(4), at(6), at(7), at(8)]
    assert runs_due(at(8, 3), past, missed="catch_up", keep=3) == [at(6), at(7), at(8)]
    assert runs_due(at(8, 3), {}, missed="catch_up") == [at(8)], "nothing was missed before the first run"
    assert runs_due(at(8, 3), {at(3): "foreign"}, missed="catch_up") == [at(8)]
    assert runs_due(at(8, 3), {at(6): "finished", at(7): "foreign"}, missed="catch_up") == [at(8)]


def test_unfinished_runs_are_gone_on_with_or_left() -> None:
    past: dict[datetime, State] = {at(3): "unfinished", at(4): "foreign", at(5): "finished"}
    assert runs_due(at(6, 3), past) == [at(3), at(6)]
    assert runs_due(at(6, 3), past, unfinished="leave") == [at(6)]
    assert runs_due(at(6, 3), past, keep=1) == [at(6)], "what is to be removed is not gone on with"


def test_only_finished_sets_take_up_room() -> None:
    past: dict[datetime, State] = {
        at(1): "unfinished",
        at(2): "foreign",
        at(3): "finished",
        at(4): "unfinished",
        at(5): "finished",
        at(6): "unfinished",
    }
    assert surplus(None, past) == []
    assert surplus(3, past) == []
    assert surplus(2, past) == [at(1)]
    assert surplus(1, past) == [at(1), at(3), at(4)]


def test_run_dates_in_paths_are_filled_in_and_read_back(tmp_path: Path) -> None:
    when = at(5, 2, 30)
    patterns = (
        ("{date}", at(5)),
        ("x-{datetime}.y", when),
        ("{year}/m{month}/{day}/set", at(5)),
        ("{date}/{hour}", at(5, 2)),
        ("{date}T{hour}{minute}", when),
    )
    for number, (pattern, told) in enumerate(patterns):
        root = tmp_path / str(number)
        for time in (when, when + DAY):
            (root / dates.fill(pattern, time)).mkdir(parents=True)
        for other in ("2026-13-01", "2026-02-30", "other", "x-2026-03-05T0230Z-y"):
            (root / other).mkdir(exist_ok=True)
        storage, found = dates.folders(f"{root}/{pattern}")
        assert storage.uri == str(root)
        assert found == {time: dates.fill(pattern, time) for time in (told, told + DAY)}
        assert dates.told(pattern, when) == told


def test_a_path_whose_parts_contradict_each_other_is_no_runs(tmp_path: Path) -> None:
    (tmp_path / "2026" / "2025-03-05").mkdir(parents=True)
    assert dates.folders(f"{tmp_path}/{{year}}/{{date}}")[1] == {}


def test_a_run_is_a_job_of_its_own() -> None:
    job = scheduled("s3://bucket/{date}/set", path="s3://bucket/rows/{year}.csv")
    one = resolved(job, at(5))
    assert one.output.uri == "s3://bucket/2026-03-05/set"
    assert one.manifest.path == "s3://bucket/rows/2026.csv"
    assert resolved(scheduled(count=10), at(5)).manifest == scheduled(count=10).manifest
    assert name_of(job, at(5)) == "2026-03-05"
    assert name_of(scheduled("{datetime}"), at(5, 2)) == "2026-03-05T02:00Z"


def seeds(count: int, run: datetime) -> range:
    rows = resolved(scheduled(count=count, advance_seeds=True), run).manifest.range
    assert rows is not None
    return range(rows.seed, rows.seed + rows.count)


@given(
    st.lists(
        st.tuples(st.datetimes(datetime(2024, 1, 1), datetime(2060, 1, 1)), st.integers(1, 10**7)),
        min_size=2,
        max_size=20,
    )
)
@settings(deadline=None)
def test_no_two_runs_share_a_seed_whatever_their_rows(runs: list[tuple[datetime, int]]) -> None:
    by_minute = {when.replace(second=0, microsecond=0, tzinfo=timezone.utc): count for when, count in runs}
    taken = sorted((seeds(count, when) for when, count in by_minute.items()), key=lambda each: each.start)
    assert all(one.stop <= other.start for one, other in pairwise(taken))


def test_fewer_rows_do_not_meet_the_seeds_of_more() -> None:
    """Counted up by rows and minutes alone they would, twenty days later."""
    minutes = at(5).timestamp() // 60
    later = datetime.fromtimestamp(60 * (minutes * 1001 // 1000 + 1), timezone.utc)
    assert timedelta(20) < later - at(5) < timedelta(21)
    more, fewer = seeds(1001, at(5)), seeds(1000, later)
    assert more.stop <= fewer.start or fewer.stop <= more.start


def test_seeds_beyond_the_largest_are_refused() -> None:
    with pytest.raises(UsageError, match="beyond the largest"):
        seeds(2**40, at(5))


def test_the_run_of_a_date() -> None:
    daily, twice = scheduled(), scheduled("{datetime}")
    assert parse_run(daily, NIGHTLY, "2026-03-05", at(9)) == at(5)
    assert parse_run(daily, NIGHTLY, "2026-03-05T02:00Z", at(9)) == at(5)
    assert parse_run(twice, "0 2,14 * * *", "2026-03-05T1400Z", at(9)) == at(5, 14)
    for text, expression, reason in (
        ("yesterday", NIGHTLY, "expected a date"),
        ("2026-03-05T03:00", NIGHTLY, "has no run then"),
        ("2026-03-05", "0 2 1 * *", "has no run then"),
        ("2026-03-05", "0 2,14 * * *", "2 runs then; say the time too, as in 2026-03-05T02:00"),
        ("2026-03-09", NIGHTLY, "still to come, at 2026-03-09T02:00Z"),
    ):
        with pytest.raises(UsageError, match=reason):
            parse_run(twice, expression, text, at(9))


JOB: dict[str, Any] = {
    "name": "nightly",
    "target": {"name": "fashion-mnist"},
    "manifest": {"range": {"count": 10, "labels": "cycle"}},
    "output": {"uri": "out/{date}"},
    "schedule": {"cron": NIGHTLY},
}


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("schedule.cron='@daily'", "schedule.cron: needs five fields"),
        ("schedule.cron=0 0 2 * * *", "schedule.cron: needs five fields"),
        ("schedule.cron=0 25 * * *", "schedule.cron: bad hour in '0 25 * * *'"),
        ("schedule.cron=0 0 31 2 *", "schedule.cron: bad day-of-month"),
        ("schedule.keep=0", "schedule.keep: must be at least 1"),
        ("schedule.missed=ignore", "schedule.missed: must be `catch_up` or `skip`"),
        ("output.uri=out/set", "output.uri: must tell the run's date"),
        ("output.uri=out/{hour}", "output.uri: must tell the run's date"),
        ("output.uri=out/{Date}", "output.uri: {Date} is not known; what is: {date}, {datetime}"),
        ("output.uri=s3://b-{date}/x", "output.uri: the bucket's name cannot hold a run date"),
        ("schedule.cron=0 0,12 * * *", "output.uri: the runs of 00:00 and 12:00 would write to one output"),
        ("schedule=null", "output.uri: holds a run date, which only a `schedule` fills in"),
        ("output.overwrite=true", "output.overwrite: would remove a run's set"),
        ("schedule.notify={events: [failure]}", "schedule.notify: needs `command` or `webhook_env`"),
        ("schedule.notify.webhook_env=https://h.example/hunter2", "is the name of an environment variable"),
        ("schedule.notify.command=curl https://h.example/hunter2", "must not hold addresses or secrets"),
        ("schedule.notify.command=tell --password hunter2", "must not hold addresses or secrets"),
        ("schedule.notify.command=tell -H 'Bearer hunter2'", "must not hold addresses or secrets"),
    ],
)
def test_what_does_not_fit_a_schedule_is_refused(tmp_path: Path, override: str, expected: str) -> None:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(JOB))
    with pytest.raises(UsageError) as caught:
        load_job(str(tmp_path / "job.yaml"), [override])
    assert expected in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_seeds_of_a_file_do_not_advance_and_its_date_is_the_outputs(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump({**JOB, "manifest": {"path": "rows/{date}.csv"}}))
    with pytest.raises(UsageError, match="needs manifest"):
        load_job(str(tmp_path / "job.yaml"), ["schedule.advance_seeds=true"])
    with pytest.raises(UsageError, match="tells more of the run's time than output"):
        load_job(str(tmp_path / "job.yaml"), ["manifest.path=rows/{datetime}.csv"])
    for command in ('curl --data @- "$HOOK"', "tell --token $TOKEN", "tell --password-stdin"):
        job = load_job(str(tmp_path / "job.yaml"), [f"schedule.notify={{command: '{command}'}}"])
        assert job.schedule is not None


class World:
    """Sets and the clock, without their rows: what a schedule sees. Seeded events do to it what may happen."""

    def __init__(self, job: Job, seed: int) -> None:
        assert job.schedule is not None
        self.job, self.schedule, self.random = job, job.schedule, random.Random(seed)
        self.sets: dict[datetime, State] = {at(2) - 30 * DAY: "foreign"}
        self.ever_finished: set[datetime] = set()

    def turn(self, now: datetime, outcome: Callable[[], str]) -> None:
        """As `Turn.make_due`: runs in order, each with an outcome, then removal unless the process died."""
        for run in due(self.schedule, now, dict(self.sets), partial(run_of, self.job)):
            end = outcome()
            assert self.sets.get(run) != "foreign"
            if self.sets.get(run) != "finished":
                if end in ("finished", "unfinished"):
                    self.sets[run] = "finished" if end == "finished" else "unfinished"
                if end == "killed":
                    return
            self.ever_finished |= {run} if self.sets.get(run) == "finished" else set()
        for run in surplus(self.schedule.keep, dict(self.sets)):
            newer = [other for other, state in self.sets.items() if other > run and state == "finished"]
            assert self.sets.pop(run) != "foreign"
            assert self.schedule.keep is not None
            assert len(newer) >= self.schedule.keep


@given(
    st.integers(0, 2**32),
    st.sampled_from(["skip", "catch_up"]),
    st.sampled_from(["continue", "leave"]),
    st.sampled_from([None, 1, 3]),
)
@settings(deadline=None, max_examples=150)
def test_nothing_is_lost_doubled_or_removed_too_early(
    seed: int, missed: str, unfinished: str, keep: int | None
) -> None:
    job = scheduled(missed=missed, unfinished=unfinished, keep=keep)
    world = World(job, seed)
    foreign = [run for run, state in world.sets.items() if state == "foreign"]
    for day in range(1, 11):
        for _ in range(world.random.choice((0, 1, 1, 2, 3))):  # turns of that day; none is a missed day
            now = at(day, world.random.randrange(24))
            world.turn(now, lambda: world.random.choice(("finished", "finished", "unfinished", "absent", "killed")))
    end = at(12, 3)
    world.turn(end, lambda: "finished")
    assert all(run in world.sets for run in foreign)
    assert world.sets[at(12)] == "finished"
    kept = {run for run, state in world.sets.items() if state == "finished"}
    assert keep is None or len(kept) <= keep
    assert keep is not None or kept == world.ever_finished, "without `keep` nothing is removed"
    if unfinished == "continue":
        assert "unfinished" not in world.sets.values()
    own = [run for run, state in world.sets.items() if state != "foreign"]
    if missed == "catch_up" and unfinished == "continue":
        wanted = [at(12) - DAY * n for n in range((at(12) - min(own)).days + 1)]
        assert wanted == sorted(own, reverse=True), "no day is missing"
    before = dict(world.sets)
    world.turn(end, lambda: "finished")
    assert world.sets == before, "a further turn changes nothing"
