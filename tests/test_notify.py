"""Telling somebody: what arrives, and that nothing and nobody can keep or spoil a run by it."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pipeline.notify import notify
from pipeline.spec import NotifySpec

MESSAGE = {"job": "nightly", "outcome": "failure", "text": "lost: “ü”"}
LONG_S = 60.0  # nothing here may wait so long


def told(message: dict[str, Any] = MESSAGE, **settings: Any) -> list[str]:
    began = time.monotonic()
    lines = list(notify(NotifySpec(**settings), message))
    assert time.monotonic() - began < LONG_S / 2
    return lines


class Hook(BaseHTTPRequestHandler):
    """Keeps what is posted, and answers 500 to the path /broken."""

    got: list[tuple[str, Any]]

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        self.got.append((self.headers["Content-Type"], json.loads(data)))
        self.send_response(500 if self.path == "/broken" else 200)
        self.end_headers()

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture
def hook() -> Iterator[str]:
    Hook.got = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Hook) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_a_command_gets_the_message_and_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TO", str(tmp_path / "told"))
    assert told(command='cat > "$TO"') == []
    assert json.loads((tmp_path / "told").read_text()) == MESSAGE
    assert told(command="true") == [], "it need not be read"


def test_only_the_events_that_are_asked_for_are_told(tmp_path: Path) -> None:
    command = f"touch {tmp_path / 'told'}"
    assert told(command=command, events=["success"]) == []
    assert not (tmp_path / "told").exists()
    assert told({**MESSAGE, "outcome": "success"}, command=command, events=["success"]) == []
    assert (tmp_path / "told").exists()


def test_a_command_that_fails_or_hangs_is_told_of_and_ended(tmp_path: Path) -> None:
    assert told(command="exit 7") == ["schedule.notify.command ended with exit status 7"]
    late = tmp_path / "late"
    assert told(command=f"sleep 3; touch {late} & sleep {LONG_S}", timeout=0.2) == [
        "schedule.notify.command was ended after 0.2 s"
    ]
    time.sleep(3.5)
    assert not late.exists(), "what it started is ended too"


def test_a_webhook_gets_the_message(hook: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK", hook)
    assert told(webhook_env="HOOK") == []
    assert Hook.got == [("application/json", MESSAGE)]


def test_a_webhook_that_fails_is_told_of_without_its_address(hook: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK", f"{hook}/broken")
    assert told(webhook_env="HOOK") == ["schedule.notify.webhook_env was answered with 500"]
    for address in ("", "hunter2", "http://hunter2.invalid/x", "http://[hunter2", "http://127.0.0.1:1/hunter2"):
        monkeypatch.setenv("HOOK", address)
        (line,) = told(webhook_env="HOOK")
        assert "hunter2" not in line
        assert "could not be reached" in line or "holds no http(s):// address" in line


def test_a_webhook_that_drips_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes in time, and the answer never."""
    ended = threading.Event()

    def drip() -> None:
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
            while not ended.wait(0.1):
                connection.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=drip, daemon=True).start()
        monkeypatch.setenv("HOOK", f"http://127.0.0.1:{server.getsockname()[1]}")
        assert told(webhook_env="HOOK", timeout=1.0) == ["schedule.notify.webhook_env had not answered after 1 s"]
        ended.set()
