"""Data files that are damaged in many ways, and read: ``python -m tests.faults.data_files '{"KIND": COUNT}'``.

The number of a file is its seed, so that one case can be repeated.
"""

from __future__ import annotations

import ast
import gzip
import hashlib
import io
import json
import random
import shutil
import struct
import sys
import tarfile
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from torchckn import data
from torchckn.data import catalogue, originals
from torchckn.errors import CKNError

from .harness import try_all

EXTREMES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**63 - 1, 2**63, 2**64 - 1)


def damaged(raw: bytes, g: random.Random) -> bytes:
    """The bytes of a file with one to four changes; half of these are near its beginning, where headers are."""
    content = bytearray(raw)
    for _ in range(g.randint(1, 4)):
        size = len(content)
        if not size:
            break
        at = g.randrange(size if g.random() < 0.5 else min(size, 200))
        span = g.randint(1, 32)
        kind = g.randrange(7)
        if kind == 0:
            content[at] ^= 1 << g.randrange(8)
        elif kind == 1:
            content[at : at + span] = g.randbytes(span)
        elif kind == 2:
            del content[at:]
        elif kind == 3:
            content[at:at] = g.randbytes(span)
        elif kind == 4:
            content[at : at + span] = bytes(span)
        elif kind == 5:
            del content[at : at + span]
        else:
            width, order = g.choice((1, 2, 4, 8)), g.choice("<>")
            value = g.choice(EXTREMES) % 2 ** (8 * width)
            content[at : at + width] = struct.pack(order + {1: "B", 2: "H", 4: "I", 8: "Q"}[width], value)
    return bytes(content)


def damaged_png(raw: bytes, g: random.Random) -> bytes:
    """The same within one chunk, with a checksum that agrees, so that more than the checksum is tested."""
    at, chunks = 8, []
    while at < len(raw):
        (length,) = struct.unpack(">I", raw[at : at + 4])
        chunks.append((raw[at + 4 : at + 8], raw[at + 8 : at + 8 + length]))
        at += 12 + length
    which = g.randrange(len(chunks))
    kind, body = chunks[which]
    chunks[which] = kind, zlib.compress(damaged(zlib.decompress(body), g)) if kind == b"IDAT" else damaged(body, g)
    return raw[:8] + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )


def arrays() -> dict[str, np.ndarray]:
    g = np.random.default_rng(0)
    return {
        "train_images": g.integers(0, 255, (20, 4, 4), np.uint8),
        "train_labels": (np.arange(20) % 10).astype(np.uint8),
        "test_images": g.integers(0, 255, (10, 4, 4), np.uint8),
        "test_labels": np.arange(10).astype(np.uint8),
    }


def idx_files() -> dict[str, bytes]:
    return {
        originals.IDX_FILES[part]: bytes([0, 0, 8, array.ndim])
        + struct.pack(f">{array.ndim}I", *array.shape)
        + array.tobytes()
        for part, array in arrays().items()
    }


def forged(raw: bytes, g: random.Random) -> bytes:
    """The bytes of an .npy file with a header that is well-formed, and untrue."""
    (length,) = struct.unpack("<H", raw[8:10])
    header = ast.literal_eval(raw[10 : 10 + length].decode())
    for key in g.sample(sorted(header), g.randint(1, 2)):
        if key == "shape":
            sizes = list(header["shape"]) + [1] * g.randint(0, 2)
            sizes[g.randrange(len(sizes))] = g.choice((*EXTREMES, -1, 10**6, 10**30))
            header["shape"] = tuple(sizes)
        else:
            kinds = (
                "<f8",
                "<f2",
                ">u2",
                "|b1",
                "|O",
                "<U4",
                "|V8",
                "<c16",
                "<M8[s]",
                "|S0",
                "<f16",
                [("a", "<f4"), ("b", "|O")],
            )
            header[key] = g.choice(kinds) if key == "descr" else True
    text = repr(header).encode() + b"\n"
    content = raw[10 + length :] * g.choice((0, 1, 1, 1, 2))
    return raw[:8] + struct.pack("<H", len(text)) + text + content


def read_npz(folder: Path, g: random.Random) -> None:
    """Damage in an array before it is packed, or in the archive."""
    x = np.random.default_rng(0).random((6, 5, 4)).astype(g.choice(["f8", "f4", "u1", "<i8", ">i4"]))
    content = {"x": x, "y": np.arange(6), "x_test": x[:2], "y_test": np.arange(2)}
    inside, victim = g.random() < 0.6, g.choice(list(content))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", g.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])) as archive:
        for name, array in content.items():
            entry = io.BytesIO()
            np.save(entry, array)
            damage = forged if g.random() < 0.5 else damaged
            archive.writestr(f"{name}.npy", damage(entry.getvalue(), g) if inside and name == victim else entry.getvalue())
    raw = buffer.getvalue()
    (folder / "own.npz").write_bytes(raw if inside else damaged(raw, g))
    data.load(folder / "own.npz")


def read_images(folder: Path, g: random.Random) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (6, 5, 3), np.uint8)
    images = [
        Image.fromarray(pixels),
        Image.fromarray(pixels[..., 0]),
        Image.fromarray(pixels[..., 0].astype(np.uint16) * 257),
    ]
    for name in "ab":
        (folder / name).mkdir()
        images[0].save(folder / name / "1.png")
    ending = g.choice([".png", ".png", ".png", ".jpg", ".gif", ".bmp", ".tif", ".webp", ".ppm"])
    image = g.choice(images if ending == ".png" else images[:2])
    file = folder / "b" / f"2{ending}"
    image.save(file)
    damage = damaged_png if ending == ".png" and g.random() < 0.7 else damaged
    file.write_bytes(damage(file.read_bytes(), g))
    data.load(folder)


def fetch_and_compare(folder: Path) -> None:
    found, expected = data.load("tiny", folder, progress=False), arrays()
    assert found.test is not None
    for part, name in ((found.train, "train"), (found.test, "test")):
        assert np.array_equal(part.images[:, 0], expected[f"{name}_images"])
        assert np.array_equal(part.labels, expected[f"{name}_labels"])
    assert data.verify("tiny", folder)


def read_idx(folder: Path, g: random.Random) -> None:
    packed, victim = g.random() < 0.5, g.choice(list(idx_files()))
    for name, raw in idx_files().items():
        before = damaged(raw, g) if name == victim and g.random() < 0.7 else raw
        content = gzip.compress(before) if packed else before
        changed = damaged(content, g) if name == victim and before == raw else content
        (folder / (name + ".gz" if packed else name)).write_bytes(changed)
    fetch_and_compare(folder)


def read_cache(folder: Path, g: random.Random) -> None:
    for name, raw in idx_files().items():
        (folder / name).write_bytes(raw)
    fetch_and_compare(folder)
    file = folder / "torchckn-tiny.safetensors"
    file.write_bytes(damaged(file.read_bytes(), g))
    fetch_and_compare(folder)


def read_shards(folder: Path, g: random.Random) -> None:
    """Damage in one of two shards, which are read image by image."""
    pixels = np.random.default_rng(0).integers(0, 255, (4, 6, 5), np.uint8)
    kind = g.choice(("tar", "npz"))
    for shard in range(2):
        buffer = io.BytesIO()
        if kind == "npz":
            np.savez(buffer, x=pixels, y=np.arange(4) % 2)
        else:
            with tarfile.open(
                fileobj=buffer, mode="w", format=g.choice((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT))
            ) as archive:
                for number, image in enumerate(pixels):
                    content = io.BytesIO()
                    Image.fromarray(image).save(content, "PNG")
                    entry = tarfile.TarInfo(f"{'ab'[number % 2]}/{number}" + "long" * g.choice((0, 50)) + ".png")
                    entry.size = len(content.getvalue())
                    archive.addfile(entry, io.BytesIO(content.getvalue()))
        (folder / f"train-{shard}.{kind}").write_bytes(damaged(buffer.getvalue(), g) if shard else buffer.getvalue())
    train = data.load(folder, stream=True).train
    for number in range(len(train)):
        train[number]


KINDS: dict[str, Callable[[Path, random.Random], None]] = {
    "npz": read_npz,
    "images": read_images,
    "idx": read_idx,
    "cache": read_cache,
    "shards": read_shards,
}


def attempt(kind: str, seed: int) -> str:
    folder = Path(tempfile.mkdtemp(prefix="torchckn-faults-"))
    try:
        KINDS[kind](folder, random.Random(f"{kind} {seed}"))
    except CKNError as error:
        return "refused" if str(error) else "FAILED no message"
    finally:
        shutil.rmtree(folder)
    return "read"


def main(counts: dict[str, int]) -> None:
    warnings.simplefilter("ignore")
    hashes = {part: hashlib.sha256(array.tobytes()).hexdigest() for part, array in arrays().items()}
    catalogue.SOURCES["tiny"] = catalogue.Source(tuple("0123456789"), (1, 4, 4), hashes, originals.read_idx, (), None)
    cases = ((kind, seed) for kind, count in counts.items() for seed in range(count))
    try_all((f"{kind} {seed}", partial(attempt, kind, seed)) for kind, seed in cases)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
