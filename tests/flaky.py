"""A proxy before an S3 server, which passes requests on, or has trouble with them."""

from __future__ import annotations

import http.client
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

# refused: answered with 503; stalled: never answered; reset: the connection breaks before the server hears of it;
# lost: the connection breaks after the server did what was asked.
Trouble = Literal["refused", "stalled", "reset", "lost"]
TROUBLES: tuple[Trouble, ...] = ("refused", "stalled", "reset", "lost")

_BUSY = b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"


class Flaky:
    """What a test tells the proxy, and what the proxy saw.

    Attributes:
        endpoint: where it listens.
        trouble: asked for each request, by method and path with query, in the order in which they come.
        struck: requests that it had trouble with.
    """

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.trouble: Callable[[str, str], Trouble | None] = lambda method, path: None
        self.struck: list[tuple[str, str]] = []
        self.ended = threading.Event()
        self._lock = threading.Lock()

    def strike(self, trouble: Trouble, times: int) -> None:
        """Trouble with the next so many requests."""
        self.struck = []
        self.trouble = lambda method, path: trouble if len(self.struck) < times else None

    def asked(self, method: str, path: str) -> Trouble | None:
        with self._lock:
            trouble = self.trouble(method, path)
            if trouble is not None:
                self.struck.append((method, path))
            return trouble


@contextmanager
def flaky(behind: str) -> Iterator[Flaky]:
    """A proxy before the server whose endpoint is `behind`."""
    host = behind.removeprefix("http://")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            match state.asked(self.command, self.path):
                case "refused":
                    return self.answer(503, [], _BUSY)
                case "stalled":
                    state.ended.wait()
                    return self.reset()
                case "reset":
                    return self.reset()
                case "lost":
                    self.passed_on(body)
                    return self.reset()
            return self.answer(*self.passed_on(body))

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any

        def passed_on(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
            connection = http.client.HTTPConnection(host)
            # The host is what the client asked for: the signature covers it.
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() != "expect":
                    connection.putheader(name, value)
            connection.endheaders(body)
            answer = connection.getresponse()
            content = answer.read()
            connection.close()
            return answer.status, answer.getheaders(), content

        def answer(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
            self.send_response_only(status)
            length = str(len(content))
            for name, value in headers:
                if name.lower() == "content-length" and self.command == "HEAD":
                    length = value
                elif name.lower() not in ("content-length", "transfer-encoding", "connection"):
                    self.send_header(name, value)
            self.send_header("Content-Length", length)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def reset(self) -> None:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            self.close_connection = True

        def log_message(self, format: str, *arguments: object) -> None:
            pass

        def finish(self) -> None:
            with suppress(OSError, ValueError):  # the connection was reset
                super().finish()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.block_on_close = False
    server.handle_error = lambda request, client_address: None  # type: ignore[method-assign]
    state = Flaky(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield state
    finally:
        state.ended.set()
        server.shutdown()
        server.server_close()
        thread.join()
