"""A server of the drawing board, for tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from torchckn import cli
from torchckn.draw import make_server


@pytest.fixture(scope="session")
def drawing_runs(tmp_path_factory: pytest.TempPathFactory, few_digits: Path) -> Path:
    """A CKN and a ConvNet that were trained a little."""
    folder = tmp_path_factory.mktemp("draw")
    for kind, options in (("ckn", "--patches 500 --folds 0"), ("convnet", "")):
        options += f" --kind {kind} --filters 8 --lambdas 0.001,0.00001 --steps 20 --data {few_digits} --run {folder / kind}"
        cli.app(["train", "lenet5", *options.split(), "-q"], standalone_mode=False)
    return folder


def started(made: Any) -> Iterator[Any]:
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()


@pytest.fixture(scope="session")
def server(drawing_runs: Path) -> Iterator[Any]:
    """A server for both."""
    yield from started(make_server([drawing_runs / "ckn", drawing_runs / "convnet"]))
