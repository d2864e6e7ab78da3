"""A local web page that classifies what you draw with the mouse, while you draw: ``torchckn draw RUN``.

The server listens on the loopback address only, answers only requests to that address, refuses those of other web pages, and
accepts nothing but one small square of gray pixels. Other users of the same machine can reach it.
"""

from __future__ import annotations

import io
import json
import os
import re
import socket
import sys
import threading
import time
import webbrowser
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any

from ..errors import ConfigError, DataError
from ..report.policy import content_policy
from .board import Board, parse_drawing

ADDRESS = "127.0.0.1"
#: maximum size of a request in bytes
LIMIT = 128 * 1024
#: seconds that a client has for sending a request, and for receiving the answer
DEADLINE = 10.0
#: requests that may wait to be accepted
QUEUE = 512


class _Before(io.RawIOBase):
    """What a client sends until a deadline, however slowly it does."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self.connection, self.deadline = connection, deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self.connection.settimeout(left)
        return self.connection.recv_into(buffer)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    default_request_version = "HTTP/1.0"  # answers to HTTP/0.9 would have no headers

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_Before(self.connection, time.monotonic() + DEADLINE))

    def version_string(self) -> str:
        return "torchckn"

    def do_GET(self) -> None:
        if self._refused():
            return
        if self.path != "/":
            self._answer(HTTPStatus.NOT_FOUND, {"error": "not found; the only page is /"})
            return
        self._send(HTTPStatus.OK, "text/html; charset=utf-8", self.server.page)

    def do_POST(self) -> None:
        if self._refused():
            return
        if self.path != "/classify":
            self._answer(HTTPStatus.NOT_FOUND, {"error": "not found; send drawings to /classify"})
            return
        length = self._only("Content-Length") or ""
        if not (length.isascii() and length.isdigit() and len(length) < 12) or "Transfer-Encoding" in self.headers:
            self._answer(
                HTTPStatus.LENGTH_REQUIRED, {"error": "expected a Content-Length header with the size of the request"}
            )
        elif int(length) > LIMIT:
            self._answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, {"error": f"expected at most {LIMIT} bytes, got {length}"})
        else:
            self._classify(int(length))

    def _classify(self, length: int) -> None:
        try:
            drawing = parse_drawing(self.rfile.read(length))
        except TimeoutError:
            self._answer(HTTPStatus.REQUEST_TIMEOUT, {"error": f"expected {length} bytes within {DEADLINE:g} seconds"})
        except DataError as error:
            self._answer(HTTPStatus.BAD_REQUEST, {"error": str(error)})
        else:
            with self.server.one_at_a_time:
                answers = self.server.board.classify(drawing)
            self._answer(HTTPStatus.OK, {"answers": answers})

    def _refused(self) -> bool:
        """Refuse what another web page in the same browser has sent, which its Host, Origin or Sec-Fetch-Site header shows."""
        port = self.server.server_port
        hosts = [f"{name}:{port}" for name in (ADDRESS, "localhost")] + ([ADDRESS, "localhost"] if port == 80 else [])
        host = self._only("Host")
        if host not in hosts:
            expected = f"one Host header, {hosts[0]}"
        elif self._only("Origin", f"http://{host}") != f"http://{host}":
            expected = f"no Origin header, or http://{host}"
        elif self._only("Sec-Fetch-Site", "none") not in ("same-origin", "none"):
            expected = f"a request of its own page; open http://{host}/ in a new tab"
        else:
            return False
        self._answer(HTTPStatus.FORBIDDEN, {"error": f"refused: expected {expected}"})
        return True

    def _only(self, name: str, otherwise: str | None = None) -> str | None:
        """The value of a header, ``otherwise`` if there is none, and None if there are several."""
        values = self.headers.get_all(name, [])
        return (values[0] if len(values) == 1 else None) if values else otherwise

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Of requests that are no HTTP, or have another method."""
        self._answer(HTTPStatus(code), {"error": HTTPStatus(code).phrase})

    def _answer(self, status: HTTPStatus, content: dict[str, Any]) -> None:
        self._send(status, "application/json", json.dumps(content).encode())

    def _send(self, status: HTTPStatus, kind: str, content: bytes) -> None:
        self.connection.settimeout(DEADLINE)
        self.send_response(status)
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(content)),
            "Content-Security-Policy": self.server.policy,
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-store",
            "Connection": "close",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.close_connection = True
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing is logged, because every stroke is a request."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = QUEUE

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that have disconnected."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    def __init__(self, port: int, board: Board) -> None:
        self.board = board
        self.one_at_a_time = threading.Lock()  # many networks at once would only compete for cores and memory
        page = resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8")
        self.page = page.encode()
        scripts, styles = (re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL) for tag in ("script", "style"))
        self.policy = content_policy(scripts, styles, connect_src="'self'", frame_ancestors="'none'")
        super().__init__((ADDRESS, port), _Handler)


def make_server(
    runs: Sequence[str | os.PathLike[str]],
    port: int = 0,
    data_dir: str | os.PathLike[str] | None = None,
    trust: bool = False,
    data: str | None = None,
) -> _Server:
    """The server, not started; ``server.server_port`` is its port."""
    board = Board(runs, data_dir, trust, data)
    try:
        return _Server(port, board)
    except OSError as error:
        raise ConfigError(
            f"port {port} cannot be used: {error.strerror}; choose another one with --port, or --port 0 for any free port"
        ) from None


def serve(
    runs: Sequence[str | os.PathLike[str]],
    port: int = 8000,
    *,
    open_browser: bool = True,
    data: str | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    trust: bool = False,
) -> None:
    """Serve the page until Ctrl-C."""
    server = make_server(runs, port, data_dir, trust, data)
    address = f"http://{ADDRESS}:{server.server_port}/"
    print(f"open {address} to draw (stop with Ctrl-C)", flush=True)
    if open_browser:
        webbrowser.open(address)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()
