"""Ray's Jobs API of one cluster: attempts at a job are submitted, followed and stopped; errors are told in words."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import requests
from ray.exceptions import AuthenticationError
from ray.job_submission import JobStatus, JobSubmissionClient

from pipeline.cluster import REACH_S, one_line
from pipeline.errors import Unavailable, UsageError

POLL_S = 1.0
LOST_S = 60.0  # without an answer, after which a cluster that is waited for counts as lost
STOP_WAIT_S = 30  # before Ray kills a job that it has told to end; the driver's own grace is shorter
_TOKEN_FILE = "~/.ray/auth_token"

for _module in ("dashboard.modules.dashboard_sdk", "dashboard.modules.job.sdk", "_private.runtime_env.packaging"):
    logging.getLogger(f"ray.{_module}").setLevel(logging.WARNING)  # what they do is told by the caller


@dataclass(frozen=True)
class Attempt:
    """One submission of a job.

    Attributes:
        name: its submission id.
        number: from 1.
        status: Ray's: PENDING, RUNNING, STOPPED, SUCCEEDED, FAILED.
        exit_code: of the driver, if it ended by itself.
        message: what Ray says of it.
        package: what was sent along, by its hash.
    """

    name: str
    number: int
    status: str
    exit_code: int | None
    message: str
    package: str

    @property
    def ended(self) -> bool:
        return JobStatus(self.status).is_terminal()


class RayJobs:
    """The jobs of the cluster whose dashboard is at an address."""

    def __init__(self, address: str) -> None:
        """
        Raises:
            UsageError: not an address, not a dashboard, a token that the cluster refuses, or a Ray that is too old.
            Unavailable: nothing answers there.
        """
        self.address = _checked(address)
        token, self._token_from = _token()
        headers = {"Authorization": f"Bearer {token}"} if token else None
        with self._errors_in_words(), _no_other_address():
            self._client = JobSubmissionClient(self.address, headers=headers)

    def attempts(self, name: str) -> list[Attempt]:
        """The attempts at a job that this cluster knows, in order."""
        with self._errors_in_words():
            jobs = self._client.list_jobs()
        own = re.compile(rf"{re.escape(name)}-(\d+)")
        matches = [(own.fullmatch(job.submission_id or ""), job) for job in jobs]
        return sorted((_attempt(int(match[1]), job) for match, job in matches if match), key=lambda each: each.number)

    def submit(self, name: str, number: int, command: str, folder: str, metadata: dict[str, str]) -> Attempt:
        """Starts an attempt: a shell command, in a copy of a local folder. One that is there already is left as it is.

        Raises Unavailable where the cluster does not take it.
        """
        runtime_env = {"working_dir": folder, "env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_WAIT_S)}}
        refusal = ""
        with self._errors_in_words():
            try:
                self._client.submit_job(
                    entrypoint=command, runtime_env=runtime_env, metadata=metadata, submission_id=f"{name}-{number}"
                )
            except RuntimeError as error:
                refusal = one_line(error)
        # Where two submit the same at the same time, one of them is refused, and finds the other's here.
        found = next((each for each in self.attempts(name) if each.number == number), None)
        if found is None:
            raise Unavailable(f"{self.address}: the cluster does not take the job: {refusal}")
        return found

    def logs(self, attempt: Attempt) -> str:
        """All that it has printed."""
        with self._errors_in_words():
            return self._client.get_job_logs(attempt.name)

    def stop(self, attempt: Attempt) -> None:
        """Tells it to end."""
        with self._errors_in_words():
            self._client.stop_job(attempt.name)

    def follow(self, attempt: Attempt, write: Callable[[str], None]) -> Attempt:
        """Writes what the attempt prints until it has ended, and returns it as it is then.

        Raises Unavailable where the cluster has not answered for a minute; the attempt may go on.
        """
        shown = _Shown(write)
        answered = time.monotonic()
        while True:
            # Whether the connection broke or the attempt has ended is asked below.
            with suppress(RuntimeError, OSError, aiohttp.ClientError):
                asyncio.run(self._tail(attempt, shown))
            try:
                attempt = self._now(attempt)
                if attempt.ended:
                    shown.add_all(self.logs(attempt))
                    return attempt
                answered = time.monotonic()
            except Unavailable as error:
                if time.monotonic() - answered > LOST_S:
                    raise Unavailable(f"{error}; the job may go on, and the same command attaches to it") from error
            time.sleep(POLL_S)

    def wait_until_ended(self, attempt: Attempt, seconds: float) -> Attempt:
        """The attempt as it is when it has ended, or when the time is over."""
        deadline = time.monotonic() + seconds
        while not (attempt := self._now(attempt)).ended and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return attempt

    def _now(self, attempt: Attempt) -> Attempt:
        with self._errors_in_words():
            return _attempt(attempt.number, self._client.get_job_info(attempt.name))

    async def _tail(self, attempt: Attempt, shown: _Shown) -> None:
        shown.restart()
        async for text in self._client.tail_job_logs(attempt.name):
            shown.add(text)

    @contextmanager
    def _errors_in_words(self) -> Iterator[None]:
        try:
            yield
        except AuthenticationError as error:
            if self._token_from:
                raise UsageError(
                    f"{self.address}: the cluster refuses the token that {self._token_from} holds"
                ) from error
            raise UsageError(
                f"{self.address}: the cluster asks for a token, and there is none: set RAY_AUTH_TOKEN or "
                f"RAY_AUTH_TOKEN_PATH, or put it into {_TOKEN_FILE}"
            ) from error
        except (requests.exceptions.InvalidJSONError, KeyError) as error:
            raise UsageError(f"{self.address}: what answers there is not a Ray dashboard") from error
        except (OSError, aiohttp.ClientError) as error:  # requests' own errors among them
            raise Unavailable(
                f"{self.address}: the Ray dashboard does not answer as it should: {one_line(error)}"
            ) from error
        except RuntimeError as error:
            text = one_line(error)
            if "Ray version" in text or "Version check" in text:
                raise UsageError(f"{self.address}: its Jobs API is none that this Ray can speak to: {text}") from error
            raise Unavailable(f"{self.address}: {text}") from error


class _Shown:
    """Writes a text that is told from its beginning again and again, each part of it once."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._written = self._told = 0

    def restart(self) -> None:
        self._told = 0

    def add(self, text: str) -> None:
        fresh = text[max(self._written - self._told, 0) :]
        self._told += len(text)
        if fresh:
            self._written = self._told
            self._write(fresh)

    def add_all(self, text: str) -> None:
        self.restart()
        self.add(text)


def _attempt(number: int, job: Any) -> Attempt:
    package = (job.metadata or {}).get("package", "")
    return Attempt(job.submission_id, number, job.status.value, job.driver_exit_code, job.message or "", package)


def _checked(address: str) -> str:
    """The address with its scheme, once somebody answers there; Ray itself would try for minutes."""
    address = address.rstrip("/") if "://" in address else f"http://{address}".rstrip("/")
    parts = urlsplit(address)
    try:
        default = {"http": 80, "https": 443}[parts.scheme]
        port = parts.port or default
        host = parts.hostname or ""
        if not host or parts.username is not None:
            raise ValueError
    except (KeyError, ValueError):
        raise UsageError("--address: expected that of the cluster's dashboard, as in http://HEAD:8265") from None
    try:
        socket.create_connection((host, port), timeout=REACH_S).close()
    except OSError as error:
        raise Unavailable(
            f"{address}: nothing answers there ({error.strerror or error}); is the cluster up, and is this its "
            "dashboard's address? --address or RAY_API_SERVER_ADDRESS gives it"
        ) from error
    return address


def _token() -> tuple[str, str]:
    """The cluster's token and where it comes from, in Ray's own order; empty if there is none."""
    if token := os.environ.get("RAY_AUTH_TOKEN", "").strip():
        return token, "RAY_AUTH_TOKEN"
    for origin, path in (("RAY_AUTH_TOKEN_PATH", os.environ.get("RAY_AUTH_TOKEN_PATH")), (_TOKEN_FILE, _TOKEN_FILE)):
        if path:
            with suppress(OSError):
                return Path(path).expanduser().read_text().strip(), origin
    return "", ""


@contextmanager
def _no_other_address() -> Iterator[None]:
    """Ray takes the environment's word over ours, and RAY_ADDRESS may be meant for `specdiff run`."""
    taken = {name: os.environ.pop(name) for name in ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS") if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(taken)
