"""Tells somebody how a scheduled run ended: by a command, and by a post to a web address from the environment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from pipeline.spec import NotifySpec


def notify(settings: NotifySpec, message: dict[str, Any]) -> Iterator[str]:
    """Sends a message whose `outcome` is to be told. Yields what went wrong with it, in lines without secrets."""
    if message["outcome"] not in settings.events:
        return
    data = json.dumps(message, ensure_ascii=False).encode() + b"\n"
    if settings.command is not None and (reason := _run(settings.command, data, settings.timeout)):
        yield f"schedule.notify.command {reason}"
    if settings.webhook_env is not None and (reason := _post(settings.webhook_env, data, settings.timeout)):
        yield f"schedule.notify.webhook_env {reason}"


def _run(command: str, data: bytes, timeout: float) -> str:
    """What went wrong, or ''. The command and all that it started are ended after `timeout` seconds."""
    # A file and no pipe: a command need not read it, and cannot keep us by not doing so.
    with open(os.memfd_create("message"), "w+b") as message:
        message.write(data)
        message.seek(0)
        process = subprocess.Popen(command, shell=True, stdin=message, start_new_session=True)
    try:
        status = process.wait(timeout)
    except subprocess.TimeoutExpired:
        return f"was ended after {timeout:g} s"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return f"ended with exit status {status}" if status else ""


def _post(variable: str, data: bytes, timeout: float) -> str:
    """What went wrong, or ''; never the address, which is a secret."""
    address = os.environ.get(variable, "")
    if not address.startswith(("http://", "https://")):
        return f"names {variable}, and the environment holds no http(s):// address by that name"

    def post() -> str:
        try:
            request = urllib.request.Request(address, data, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=timeout):
                return ""
        except urllib.error.HTTPError as error:
            return f"was answered with {error.code}"
        except Exception as error:  # whatever it is, the address may be in its text
            return f"could not be reached ({type(getattr(error, 'reason', error)).__name__})"

    # The time limit of a connection is one for each answer of the server's, not for all of them.
    return _within(timeout, post) or ""


def _within(seconds: float, call: Callable[[], str]) -> str:
    """What a call returns, or that it had not ended in time."""
    answer = [f"had not answered after {seconds:g} s"]
    thread = threading.Thread(target=lambda: answer.insert(0, call()), name="notify", daemon=True)
    thread.start()
    thread.join(seconds)
    return answer[0]
