"""Errors that end a command with a message for its user and an exit status, never with a traceback."""

from __future__ import annotations

from typing import ClassVar


class PipelineError(Exception):
    """Base of the errors that a user can act on; the message is complete English and names the remedy."""

    exit_code: ClassVar[int] = 1


class UsageError(PipelineError):
    """The job file, the manifest or the command line is wrong: trying again changes nothing."""

    exit_code: ClassVar[int] = 2


class Unavailable(PipelineError):
    """It could not be done now (a lease is held, storage or cluster out of reach): try later."""

    exit_code: ClassVar[int] = 3
