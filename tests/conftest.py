"""Threads and fixtures of all tests."""

from __future__ import annotations

import gc
import os

import pytest

from . import forks

# `make test` runs one process per core. More than one thread in each would only make them wait for each other. The variables
# are for the commands that tests start, and have to be set before torch and numpy are imported. A test that needs more
# threads sets them itself.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


def pytest_configure(config: pytest.Config) -> None:
    """The fixtures import torch, which takes seconds, and a process that only hands tests to others needs none."""
    if not config.getoption("numprocesses", None):
        config.pluginmanager.import_plugin("tests.fixtures")


def pytest_collection_finish() -> None:
    gc.freeze()  # what was imported stays, and need not be looked through again and again


def pytest_unconfigure() -> None:
    forks.close()
