"""The `specdiff` command. Commands import what they need as they run, so that `--help` is instant."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pipeline.errors import PipelineError
from pipeline.signals import Interrupted, Signals

if TYPE_CHECKING:
    from specdiff import TargetInfo


class _Commands(click.Group):
    """Errors that a user can act on end with a message and an exit status, not with a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except PipelineError as error:
            click.echo(f"error: {error}", err=True)
            ctx.exit(error.exit_code)
        except Interrupted as error:
            click.echo(error, err=True)
            ctx.exit(error.exit_code)


_settings = click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a setting, as in sampler.lanes=32."
)


def _counts(context: click.Context, option: click.Parameter, text: str | None) -> list[int]:
    """Numbers of workers, from text like 1,2,4."""
    try:
        counts = [int(part) for part in (text or "").split(",") if text]
    except ValueError:
        counts = [0]
    if any(count < 1 for count in counts):
        raise click.BadParameter(f"{text!r} is not a list of numbers of workers, as in 1,2,4")
    return counts


@click.group(cls=_Commands)
@click.version_option(package_name="specdiff")
def main() -> None:
    """Image data sets by exact speculative diffusion sampling.

    Exit status: 0 whole; 1 finished, but something failed or was skipped; 2 the job, manifest or command line is wrong;
    3 could not run now, try later.
    """


@main.command()
@click.argument("job", metavar="JOB.yaml")
@_settings
def check(job: str, overrides: tuple[str, ...]) -> None:
    """Check a job file and its manifest, without a device."""
    from pipeline.manifest import normalise
    from pipeline.run import checked
    from pipeline.spec import load_job
    from pipeline.words import counted

    spec = load_job(job, overrides)
    schedule_lines: list[str] = []
    if spec.schedule is not None:
        from pipeline.scheduled import newest, outlook

        schedule_lines = outlook(spec, spec.schedule)
        spec = newest(spec, spec.schedule)
    info, batch_rows = checked(spec)
    manifest = normalise(spec, info)
    shards = -(-manifest.rows // spec.output.shard_size)
    sampler = spec.sampler
    how = "sequential" if sampler.verification == "none" else f"{sampler.rule} + {sampler.drafter}"
    if sampler.verification == "auto":
        how += ", or sequential, as a pilot says at the beginning of the run"
    click.echo(f"target    {_target_line(info)}, {info.steps} steps")
    click.echo(f"sampler   {how}, {counted(sampler.lanes, 'lane')}, {counted(batch_rows, 'row')} a call")
    click.echo(f"manifest  {counted(manifest.rows, 'row')}, {manifest.bad} of them bad")
    output = spec.output
    click.echo(f"output    {output.uri}: {counted(shards, 'shard')} of {output.shard_size} {output.image_format}")
    click.echo(f"workers   {spec.workers.count}, {counted(spec.workers.threads, 'CPU thread')} each")
    for number, line in enumerate(schedule_lines):
        click.echo(f"{'' if number else 'schedule':<10}{line}")
    for problem in manifest.problems:
        click.echo(problem)
    if manifest.bad:
        click.get_current_context().exit(1)


_Command = TypeVar("_Command", bound=Callable[..., Any])


def _run_options(command: _Command) -> _Command:
    """What `run` and `submit` have in common."""
    options = (
        click.argument("job", metavar="JOB.yaml"),
        click.option("--output", metavar="URI", help="Output folder, in place of the job's."),
        click.option("--workers", type=click.IntRange(min=1), help="Number of workers, in place of the job's."),
        click.option("--limit", type=click.IntRange(min=1), help="Only the first so many rows; a later run goes on."),
        click.option("--retry-failed", is_flag=True, help="Try rows again that failed in earlier runs."),
        click.option("--date", metavar="DATE", help="Of a schedule, only the run of this date (and time), UTC."),
        _settings,
    )
    for option in reversed(options):
        command = option(command)
    return command


def _overridden(overrides: tuple[str, ...], output: str | None, workers: int | None) -> tuple[str, ...]:
    if output is not None:
        overrides += (f"output.uri={json.dumps(output)}",)
    if workers is not None:
        overrides += (f"workers.count={workers}",)
    return overrides


@main.command()
@_run_options
def run(
    job: str,
    output: str | None,
    workers: int | None,
    limit: int | None,
    retry_failed: bool,
    date: str | None,
    overrides: tuple[str, ...],
) -> None:
    """Generate what is missing, evaluate the set, and report.

    Of a job with a schedule it makes the runs that are due; nothing of it waits for the time.
    """
    with Signals() as signals:
        with signals.held():
            from pipeline.scheduled import run_job
            from pipeline.spec import load_job
        signals.check()
        spec = load_job(job, _overridden(overrides, output, workers))
        status = run_job(spec, date, limit=limit, retry_failed=retry_failed, signals=signals, say=click.echo)
    click.get_current_context().exit(status)


@main.command()
@_run_options
@click.option(
    "--address",
    envvar="RAY_API_SERVER_ADDRESS",
    default="http://127.0.0.1:8265",
    show_default=True,
    show_envvar=True,
    help="The cluster's dashboard.",
)
@click.option("--wait", "then", flag_value="wait", help="Follow the job, and end with its exit status.")
@click.option("--logs", "then", flag_value="logs", help="Print what the last attempt has printed, and submit nothing.")
@click.option("--stop", "then", flag_value="stop", help="End the attempt that runs, and submit nothing.")
def submit(
    job: str,
    output: str | None,
    workers: int | None,
    limit: int | None,
    retry_failed: bool,
    date: str | None,
    overrides: tuple[str, ...],
    address: str,
    then: str | None,
) -> None:
    """Run a job on a Ray cluster, through its Jobs API.

    If the job runs there already, this attaches to it; if its output is done, there is nothing to do. `specdiff` and
    the credentials for the output must be there on the cluster.
    """
    with Signals():
        from pipeline.spec import load_job
        from pipeline.submit import Submission

        submission = Submission(load_job(job, _overridden(overrides, output, workers)), date, address)
        if then == "logs":
            click.echo(submission.logs(), nl=False)
        elif then == "stop":
            submission.stop(click.echo)
        else:
            status = submission.submit(
                limit=limit,
                retry_failed=retry_failed,
                wait=then == "wait",
                say=click.echo,
                write=partial(click.echo, nl=False),
            )
            click.get_current_context().exit(status)


@main.command()
@click.argument("output", metavar="OUTPUT")
@click.option("--partial", is_flag=True, help="Score what there is, though rows are missing.")
def evaluate(output: str, partial: bool) -> None:
    """Compute the metrics of a data set again, without generating."""
    from pipeline.run import evaluate_again

    lines, status = evaluate_again(output, partial)
    for line in lines:
        click.echo(line)
    click.get_current_context().exit(status)


@main.command()
@click.argument("reference", metavar="REFERENCE")
@click.option("--extractor", default="inception-v3-compat", show_default=True, help="Feature extractor, by name.")
@click.option("--weights", metavar="FILE", help="File with the extractor's weights; its own if left out.")
@click.option("--output", metavar="FILE.npz", help="File to write.  [default: REFERENCE-EXTRACTOR.npz]")
def stats(reference: str, extractor: str, weights: str | None, output: str | None) -> None:
    """Compute statistics of a reference, once, for `evaluate.reference` of any number of jobs.

    REFERENCE is a folder of images or of Parquet files, a Parquet file, a data set of `specdiff run`, or fashion-mnist.
    """
    from pipeline.reference_stats import reference_stats

    reference_stats(reference, extractor, weights, output, click.echo)


@main.command()
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option("--extractor", help="Feature extractor, by name; the one that A's job evaluates by if left out.")
@click.option("--weights", metavar="FILE", help="File with the extractor's weights.")
@click.option("--splits", type=click.IntRange(min=19), default=99, show_default=True, help="Random splits of the band.")
def compare(a: str, b: str, extractor: str | None, weights: str | None, splits: int) -> None:
    """Tell whether two data sets are of one law.

    Exit status 0: nothing speaks against it; 1: they differ by more than chance would have it.
    """
    from pipeline.compare import compare as compare_sets

    found = compare_sets(a, b, extractor, weights, splits)
    for line in found.lines():
        click.echo(line)
    click.get_current_context().exit(0 if found.same else 1)


@main.command()
@click.argument("output", metavar="OUTPUT")
@click.option("--deep", is_flag=True, help="Make a sample of rows again, and compare.")
def verify(output: str, deep: bool) -> None:
    """Audit a data set against its manifest: every row once, every file and picture as it was made."""
    from pipeline.verify import verify as audit

    findings = audit(output, deep=deep)
    for line in findings.lines():
        click.echo(line)
    click.get_current_context().exit(0 if findings.whole else 1)


@main.command()
@click.argument("output", metavar="OUTPUT")
def status(output: str) -> None:
    """Tell how far a data set is, how fast it grows, and what failed."""
    from pipeline.status import status as status_of

    lines, exit_status = status_of(output)
    for line in lines:
        click.echo(line)
    click.get_current_context().exit(exit_status)


@main.command()
@click.argument("output", metavar="OUTPUT")
def clean(output: str) -> None:
    """Remove what crashes left behind: files that no record names, unfinished files and uploads."""
    from pipeline.clean import clean as remove_debris
    from pipeline.words import counted

    removed = remove_debris(output)
    for path in removed:
        click.echo(f"removed {path}")
    click.echo(f"{counted(len(removed), 'file')} removed")


@main.command()
@click.argument("job", metavar="JOB.yaml")
@click.option("--claims", is_flag=True, help="Check the paper's claims instead, each beside our figure.")
@click.option(
    "--workers",
    callback=_counts,
    metavar="N,N…",
    help="Run the whole job with so many workers each instead, as in 1,2,4: how throughput grows.",
)
@click.option(
    "--images",
    type=click.IntRange(min=2),
    help="Images counted a sampler (with --workers: of a run, or of a worker).  [default: 64; claims: 96]",
)
@click.option("--repeats", type=click.IntRange(min=1), default=5, show_default=True, help="Turns by the clock.")
@click.option("--turn", type=click.FloatRange(min=0), default=1.0, show_default=True, help="Least seconds of a turn.")
@click.option(
    "--draft-length",
    "draft_lengths",
    multiple=True,
    type=click.IntRange(min=1),
    default=(3, 7, 12),
    show_default=True,
    help="γ to compare, besides the job's own; may be given again.",
)
@click.option("--output", metavar="DIR", help="Folder of the results.  [default: out/bench-NAME]")
@_settings
def bench(
    job: str,
    claims: bool,
    workers: list[int],
    images: int | None,
    repeats: int,
    turn: float,
    draft_lengths: tuple[int, ...],
    output: str | None,
    overrides: tuple[str, ...],
) -> None:
    """Measure samplers side by side on one device, or the pipeline at several numbers of workers."""
    from pathlib import Path

    from pipeline.bench import bench as run_bench
    from pipeline.scaling import scaling
    from pipeline.spec import load_job

    if claims and workers:
        raise click.UsageError("--claims and --workers are benches of their own; choose one")
    spec = load_job(job, overrides)
    folder = Path(output or f"out/bench-{spec.name}")
    if workers:
        with Signals() as signals:
            scaling(spec, folder, workers, images or 64, signals, click.echo)
        return
    status = run_bench(
        spec,
        folder,
        claims=claims,
        images=images or (96 if claims else 64),
        repeats=repeats,
        turn=turn,
        draft_lengths=draft_lengths,
        say=click.echo,
    )
    click.get_current_context().exit(status)


@main.command()
@click.argument("target", metavar="TARGET")
@click.option("--steps", type=click.IntRange(min=3), help="Steps of the trajectories, in place of the target's own.")
@click.option("--trajectories", type=click.IntRange(min=2), default=32, show_default=True)
@click.option("--output", metavar="FILE", default="gain.safetensors", show_default=True)
def calibrate(target: str, steps: int | None, trajectories: int, output: str) -> None:
    """Calibrate the Kalman gain of a target."""
    from pipeline.calibration import calibrate_target

    calibrate_target(target, steps, trajectories, output, click.echo)


@main.command()
def targets() -> None:
    """List what can be sampled."""
    from specdiff import registered_targets

    for info in registered_targets():
        click.echo(_target_line(info))
        click.echo(f"  {info.description}; licence of the weights: {info.licence}")


@main.command()
@click.option("--markdown", "as_markdown", is_flag=True, help="As a page to read.")
def schema(as_markdown: bool) -> None:
    """Print the job file's JSON schema."""
    from pipeline.spec import Job

    found = Job.model_json_schema()
    if as_markdown:
        from pipeline.reference import markdown

        click.echo(markdown(found), nl=False)
    else:
        click.echo(json.dumps(found, indent=2))


def _target_line(info: TargetInfo) -> str:
    shape = "×".join(map(str, info.shape))
    if info.num_classes is None:
        classes = "no classes"
    else:
        classes = f"{info.num_classes} classes" + (" and a null class" if info.has_null_class else "")
    return f"{info.name}: {shape}, {classes}"


if __name__ == "__main__":
    main()
