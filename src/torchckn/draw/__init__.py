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
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from .. import data
from ..building import load_trained
from ..errors import ConfigError, DataError
from ..network import Classifier
from ..report.pictures import thumbnail
from ..report.policy import content_policy

ADDRESS = "127.0.0.1"
#: side of the square image that the page sends
SIDE = 112
#: maximum size of a request in bytes
LIMIT = 128 * 1024
#: seconds that a client has for sending a request, and for receiving the answer
DEADLINE = 10.0
#: requests that may wait to be accepted
QUEUE = 512
#: number of training images that a drawing is compared with, and number of those that are shown
REFERENCE_IMAGES, NEIGHBORS = 2000, 8
_TITLES = {"ckn": "CKN", "convnet": "ConvNet"}


@dataclass(frozen=True)
class _Entry:
    """A network, and some training images with their features, normalized to unit norm."""

    name: str
    net: Classifier
    classes: tuple[str, ...]
    train_features: Tensor | None
    pictures: tuple[str, ...]
    labels: tuple[str, ...]


class Board:
    """The networks of the page: they classify a drawing and find the training images that are most similar to it."""

    def __init__(
        self, runs: Sequence[str | os.PathLike[str]], data_dir: str | os.PathLike[str] | None = None, trust: bool = False
    ) -> None:
        if not runs:
            raise ConfigError(
                "draw expected at least one run, got none; pass the folder of a run, or several to compare them"
            )
        self.entries = [_entry(Path(run), data_dir, trust) for run in runs]

    @torch.inference_mode()
    def classify(self, pixels: np.ndarray) -> list[dict[str, Any]]:
        """For each network: the probabilities of all classes, and the nearest training images."""
        answers = []
        for entry in self.entries:
            image = as_input(pixels, entry.net.input_shape).to(entry.net.head.weight)
            features = entry.net.features(image[None])
            probabilities = torch.softmax(entry.net.head(entry.net.scaling(features)), 1)[0]
            answer: dict[str, Any] = {
                "name": entry.name,
                "classes": list(entry.classes),
                "probabilities": [round(value, 4) for value in probabilities.tolist()],
                "nearest": [],
            }
            if entry.train_features is not None:
                similarity = entry.train_features @ torch.nn.functional.normalize(features, dim=1)[0]
                best = similarity.topk(min(NEIGHBORS, len(similarity)))
                answer["nearest"] = [
                    {"picture": entry.pictures[i], "label": entry.labels[i], "similarity": round(value, 3)}
                    for i, value in zip(best.indices.tolist(), best.values.tolist(), strict=True)
                ]
            answers.append(answer)
        return answers


@torch.inference_mode()
def _entry(run: Path, data_dir: str | os.PathLike[str] | None, trust: bool) -> _Entry:
    trained = load_trained(run, trust=trust)
    net, title = trained.net, f"{run.name} ({_TITLES[trained.net.kind]})"
    if trained.settings is None or net.kind != "ckn":
        return _Entry(title, net, trained.classes, None, (), ())
    whole = data.load(trained.settings.data, data_dir)
    images, labels = (part[:REFERENCE_IMAGES] for part in whole.train)
    features = [net.features(net.pixels(some)) for some in images.split(64)]
    train_features = torch.nn.functional.normalize(torch.cat(features), dim=1)
    pictures = tuple(thumbnail(image) for image in images)
    names = tuple(trained.classes[int(label)] for label in labels)
    return _Entry(title, net, trained.classes, train_features, pictures, names)


def as_input(pixels: np.ndarray, shape: tuple[int, int, int]) -> Tensor:
    """A drawing, white on black, in MNIST's format: bounding box scaled to 20/28 of the side, centered by its center of mass."""
    channels, height, width = shape
    canvas = Image.new("L", (width, height))
    rows, columns = np.flatnonzero(pixels.max(1) > 20), np.flatnonzero(pixels.max(0) > 20)
    if len(rows) and len(columns):
        box = pixels[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        scale = min(20 / 28 * height / box.shape[0], 20 / 28 * width / box.shape[1])
        size = max(1, round(box.shape[1] * scale)), max(1, round(box.shape[0] * scale))
        small = Image.fromarray(box).resize(size, Image.Resampling.LANCZOS)
        mass = np.asarray(small, np.float64)
        total = max(mass.sum(), 1.0)
        x = (mass.sum(0) * (np.arange(size[0]) + 0.5)).sum() / total
        y = (mass.sum(1) * (np.arange(size[1]) + 0.5)).sum() / total
        canvas.paste(small, (round(width / 2 - x), round(height / 2 - y)))
    gray = torch.from_numpy(np.asarray(canvas, np.float32) / 255)
    return gray.expand(channels, height, width)


def parse_drawing(content: bytes) -> np.ndarray:
    """The pixels of a request: ``{"pixels": [SIDE * SIDE integers from 0 to 255]}``."""
    try:
        values = json.loads(content)["pixels"]
        pixels = np.asarray(values)
        if pixels.shape != (SIDE * SIDE,) or pixels.dtype.kind not in "iu" or pixels.min() < 0 or pixels.max() > 255:
            raise ValueError
    except (ValueError, KeyError, TypeError, RecursionError, UnicodeDecodeError):
        raise DataError(
            f'expected {{"pixels": [...]}} with {SIDE * SIDE} integers from 0 to 255, got something else'
        ) from None
    return pixels.astype(np.uint8).reshape(SIDE, SIDE)


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
) -> _Server:
    """The server, not started; ``server.server_port`` is its port."""
    board = Board(runs, data_dir, trust)
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
    data_dir: str | os.PathLike[str] | None = None,
    trust: bool = False,
) -> None:
    """Serve the page until Ctrl-C."""
    server = make_server(runs, port, data_dir, trust)
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
