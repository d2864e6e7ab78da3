"""Images of one's own in .npz files."""

from __future__ import annotations

import io
import os
import struct
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from torchckn import data
from torchckn.errors import DataError


def test_an_npz_file(tmp_path: Path) -> None:
    x, y = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4), np.array([1, 0])
    np.savez(tmp_path / "own.npz", x=x, y=y, x_test=x[:1], y_test=y[:1])
    found = data.load(tmp_path / "own.npz")
    assert found.train.images.shape == (2, 1, 3, 4)
    assert found.test is not None
    assert found.test.labels.tolist() == [1]
    assert found.valid is None
    np.savez(tmp_path / "own.npz", x=x, y=y, x_valid=x[1:], y_valid=y[1:])
    found = data.load(tmp_path / "own.npz")
    assert found.valid is not None
    assert found.valid.labels.tolist() == [0]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros((2, 3, 3))}, "expected arrays x and y, got x"),
        (
            {"x": np.zeros((2, 3, 3)), "y": np.zeros(2, int), "x_test": np.zeros((2, 3, 3))},
            "expected arrays x_test and y_test, got x, x_test, y",
        ),
        ({"x": np.zeros((2, 3)), "y": np.zeros(2, int)}, r"x of shape \(N, H, W\) or \(N, C, H, W\)"),
        (
            {"x": np.zeros((2, 9, 8, 3)), "y": np.array([0, 1])},
            r"channels first, .* got \(2, 9, 8, 3\), .* store numpy.moveaxis\(x, -1, 1\)",
        ),
        ({"x": np.zeros((2, 3, 3)), "y": np.zeros(2)}, "y to be integers"),
        ({"x": np.full((2, 3, 3), 1j), "y": np.zeros(2, int)}, r"and numbers, got \(2, 3, 3\) of complex128"),
        ({"x": np.zeros((2, 3, 3)), "y": np.zeros(3, int)}, "2 images and 3 labels"),
        ({"x": np.zeros((2, 3, 3)), "y": np.array([0, -1])}, "labels from 0 to 0, got -1"),
        ({"x": np.full((2, 3, 3), np.nan), "y": np.array([0, 1])}, "NaN or infinite"),
        ({"x": np.full((2, 3, 3), -np.inf), "y": np.array([0, 1])}, "NaN or infinite"),
        (
            {"x": np.full((2, 3, 3), -1e300), "y": np.array([0, 1])},
            r"own.npz has pixels of up to 1.0e\+300, beyond the range",
        ),
        (
            {"x": np.zeros((2, 3, 3)), "y": np.array([0, 10**8])},
            "own.npz expected labels below 65536, got 100000000; number",
        ),
        (
            {"x": np.zeros((2, 3, 3)), "y": np.array([0, 2**64 - 1], np.uint64)},
            "labels below 65536, got 18446744073709551615",
        ),
        (
            {"x": np.zeros((2, 0, 3)), "y": np.array([0, 1])},
            r"own.npz expected images with pixels, got x of shape \(2, 0, 3\)",
        ),
        ({"x": np.zeros((0, 3, 3)), "y": np.zeros(0, int)}, "has no images"),
        ({"x": np.array([None]), "y": np.zeros(1, int)}, "cannot be read as an .npz file of plain arrays"),
    ],
)
def test_npz_files_that_will_not_do_are_refused_with_a_reason(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    np.savez(tmp_path / "own.npz", **arrays)
    with pytest.raises(DataError, match=message):
        data.load(tmp_path / "own.npz")


def forge_npz(file: Path, shape: str, content: bytes, descr: str = "|u1", **claims: int) -> None:
    """An .npz file whose ``x`` claims a shape that it does not have."""
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    labels = io.BytesIO()
    np.save(labels, np.array([0, 1]))
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header + content)
        archive.writestr("y.npy", labels.getvalue())
    raw = file.read_bytes()
    if "file_size" in claims:  # in the directory at the end of the file
        at = raw.index(b"PK\1\2") + 24
        file.write_bytes(raw[:at] + struct.pack("<I", claims["file_size"]) + raw[at + 4 :])


@pytest.mark.parametrize(
    ("shape", "claims", "message"),
    [
        (
            "(2, 1000000, 3000000)",
            {},
            r"x claims to have shape \(2, 1000000, 3000000\), which is not the size of its content",
        ),
        ("(2, 40000, 40000)", {"file_size": 128 + 3_200_000_000}, "x claims to have 3200000128 bytes, packed into"),
        ("(-2, -5, 10)", {}, r"x claims to have shape \(-2, -5, 10\)"),
        ("(2, 5, 9)", {}, "which is not the size of its content"),
    ],
)
def test_arrays_that_claim_to_be_larger_than_they_are_are_refused_before_memory_is_taken(
    tmp_path: Path, shape: str, claims: dict[str, int], message: str
) -> None:
    file = tmp_path / "own.npz"
    forge_npz(file, shape, bytes(100), **claims)
    tracemalloc.start()
    with pytest.raises(DataError, match=f"own.npz cannot be read as an .npz file of plain arrays .*{message}"):
        data.load(file)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10e6


def test_arrays_that_need_more_memory_than_there_is_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "own.npz", x=np.zeros((2, 500, 500)), y=np.array([0, 1]))
    monkeypatch.setattr(os, "sysconf", lambda name: 1000)
    with pytest.raises(DataError, match="own.npz would need 0.0 GB of memory, this machine has 0.0 GB"):
        data.load(tmp_path / "own.npz")


def test_an_npz_file_that_is_none_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "own.npz"
    for content in (b"", b"\x93NUMPY", b"PK\3\4" + bytes(50)):
        file.write_bytes(content)
        with pytest.raises(DataError, match="own.npz cannot be read as an .npz file of plain arrays"):
            data.load(file)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("x.npy", b"x")
    with pytest.raises(DataError, match="x is compressed by a method that numpy does not use"):
        data.load(file)


def test_one_class_is_not_enough(tmp_path: Path) -> None:
    np.savez(tmp_path / "one.npz", x=np.zeros((4, 5, 5), np.uint8), y=np.zeros(4, int))
    with pytest.raises(DataError, match="at least two classes, got the label 0 only"):
        data.load(tmp_path / "one.npz")


def test_parts_with_bytes_and_with_numbers_are_not_mixed(tmp_path: Path) -> None:
    x, y = np.zeros((2, 3, 4), np.uint8), np.array([1, 0])
    np.savez(tmp_path / "own.npz", x=x.astype(np.float32), y=y, x_test=x, y_test=y)
    with pytest.raises(
        DataError, match="the same kind of pixels in all parts, got train: numbers, test: uint8; store all as"
    ):
        data.load(tmp_path / "own.npz")
