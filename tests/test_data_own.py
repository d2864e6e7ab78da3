"""Folders of images of one's own."""

from __future__ import annotations

import os
import socket
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from torchckn import building, data
from torchckn.data.own import IMAGES, read_for
from torchckn.errors import ConfigError, DataError
from torchckn.fit.config import TrainConfig
from torchckn.settings import Settings


def save(path: Path, size: tuple[int, int] = (5, 4), mode: str = "RGB", value: int = 7) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, (size[1], size[0]), value if mode == "L" else (value, 2, 3)).save(path)


def test_links_to_folders_are_followed_and_no_folder_is_read_twice(tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    save(folder / "cat" / "a.png")
    save(tmp_path / "more" / "deep" / "b.png")
    save(tmp_path / "dogs" / "c.png")
    (folder / "dog").symlink_to(tmp_path / "dogs")
    for name, target in (("more", tmp_path / "more"), ("again", "more"), ("circle", "."), ("above", "../..")):
        (folder / "cat" / name).symlink_to(target)
    found = data.load(folder)
    assert (found.classes, found.train.labels.tolist()) == (("cat", "dog"), [0, 0, 1])
    assert len(data.load_unlabeled(folder, (3, 5, 4))) == 3


def test_a_folder_that_cannot_be_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "cat" / "closed" / "a.png")
    save(tmp_path / "cat" / "b.png")
    save(tmp_path / "dog" / "c.png")
    scan = os.scandir

    def scandir(path: str) -> Any:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(DataError, match="cat/closed cannot be read: Permission denied"):
        data.load(tmp_path)


def test_a_folder_with_a_sub_folder_for_each_class(tmp_path: Path) -> None:
    save(tmp_path / "cat" / "a.png")
    save(tmp_path / "dog" / "b.jpg", value=100)
    save(tmp_path / "dog" / "c.PNG", value=200)
    (tmp_path / "dog" / ".DS_Store").write_bytes(b"hidden")
    found = data.load(tmp_path)
    assert found.classes == ("cat", "dog")
    assert found.train.images.shape == (3, 3, 5, 4)
    assert found.train.labels.tolist() == [0, 1, 1]
    assert found.train.images[0, :, 0, 0].tolist() == [7, 2, 3]
    assert found.test is None


#: formats that have images of one kind only
GREY_ONLY, COLOR_ONLY = (".pgm", ".pbm"), (".webp",)


@pytest.mark.parametrize(
    ("ending", "mode"),
    [
        *((ending, "L") for ending in IMAGES if ending not in (*COLOR_ONLY, ".pbm")),
        *((ending, "RGB") for ending in IMAGES if ending not in GREY_ONLY),
    ],
)
def test_images_are_read_in_every_format_that_is_named(tmp_path: Path, ending: str, mode: str) -> None:
    for name, value in (("a", 50), ("b", 150)):
        save(tmp_path / name / f"1{ending}", mode=mode, value=value)
        save(tmp_path / name / "deeper" / f"2{ending}", mode=mode, value=value)
    found = data.load(tmp_path)
    assert found.train.labels.tolist() == [0, 0, 1, 1]
    assert found.train.images.shape == (4, 1 if mode == "L" else 3, 5, 4)
    assert found.train.images[:, 0, 2, 2].tolist() == pytest.approx([50, 50, 150, 150], abs=6)  # some formats are lossy


def test_a_moving_image_is_its_first_frame(tmp_path: Path) -> None:
    frames = [Image.new("L", (4, 5), value) for value in (10, 200)]
    for name in "ab":
        (tmp_path / name).mkdir()
        frames[0].save(tmp_path / name / "1.gif", save_all=True, append_images=frames[1:])
    assert data.load(tmp_path).train.images.unique().tolist() == [10]


@pytest.mark.parametrize("ending", [".png", ".tif", ".pgm"])
def test_sixteen_bits_are_scaled_to_eight_and_not_cut_off(tmp_path: Path, ending: str) -> None:
    for name, value in (("a", 257 * 40), ("b", 65535)):
        (tmp_path / name).mkdir()
        Image.fromarray(np.full((5, 4), value, np.uint16)).save(tmp_path / name / f"1{ending}")
    assert data.load(tmp_path).train.images[:, 0, 0, 0].tolist() == [40, 255]


def write_png(path: Path, pixels: np.ndarray, color: int) -> None:
    """A PNG file of 16 bits, which pillow writes for grey images only; ``color`` is the type in the format's words."""
    height, width = pixels.shape[:2]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 16, color, 0, 0, 0)), (b"IDAT", zlib.compress(rows))]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + b"".join(
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
            for kind, body in [*chunks, (b"IEND", b"")]
        )
    )


@pytest.mark.parametrize(("color", "channels"), [(0, 1), (2, 3), (4, 2), (6, 4)], ids=["grey", "RGB", "grey+alpha", "RGBA"])
def test_png_files_of_sixteen_bits_are_scaled(tmp_path: Path, color: int, channels: int) -> None:
    for name, value in (("a", 257 * 40), ("b", 257 * 200)):
        write_png(tmp_path / name / "1.png", np.full((5, 4, channels), value, np.uint16), color)
    assert data.load(tmp_path).train.images[:, :, 0, 0].unique().tolist() == [40, 200]


@pytest.mark.parametrize("where", ["train/a/2.png", "train/b/0.png", "test/a/1.png", "val/b/9.png"])
def test_one_image_in_color_anywhere_makes_all_of_them_rgb(tmp_path: Path, where: str) -> None:
    for part in ("train", "val", "test"):
        for name in "ab":
            save(tmp_path / part / name / "5.png", mode="L", value=9)
    save(tmp_path / where)
    whole = data.load(tmp_path)
    assert whole.valid is not None
    assert whole.test is not None
    colored = {"train": whole.train, "val": whole.valid, "test": whole.test}[where.split("/")[0]]
    assert [part.images.shape[1] for part in (whole.train, whole.valid, whole.test)] == [3, 3, 3]
    assert [7, 2, 3] in colored.images[:, :, 0, 0].tolist()


@pytest.mark.parametrize("kind", ["pipe", "socket", "device", "broken link"])
def test_what_is_not_a_regular_file_is_named_and_not_waited_for(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # names of sockets are short
    for name in "ab":
        save(tmp_path / name / "1.png", mode="L")
    file = tmp_path / "b" / "2.png"
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as opened:
            opened.bind("b/2.png")
    else:
        file.symlink_to("/dev/zero" if kind == "device" else "nowhere")
    with pytest.raises(DataError, match="b/2.png cannot be read as an image .*; replace or remove it"):
        data.load(tmp_path)
    with pytest.raises(DataError, match="2.png cannot be read as an image|2.png does not exist"):
        read_for(file, (1, 5, 4))


@pytest.mark.parametrize("side", [9_000, 12_000, 2**31 - 1])
def test_decompression_bombs_are_refused_by_name(tmp_path: Path, side: int) -> None:
    for name in "ab":
        save(tmp_path / name / "1.png", mode="L")
    raw = (tmp_path / "a" / "1.png").read_bytes()
    header = b"IHDR" + struct.pack(">II", side, side) + raw[24:29]
    bomb = raw[:12] + header + struct.pack(">I", zlib.crc32(header)) + raw[33:]
    (tmp_path / "b" / "bomb.png").write_bytes(bomb)
    with pytest.raises(DataError, match="bomb.png cannot be read as an image"):
        data.load(tmp_path)


def test_only_the_formats_that_are_named_are_decoded(tmp_path: Path) -> None:
    for name in "ab":
        save(tmp_path / name / "1.png", mode="L")
    Image.new("L", (4, 5)).save(tmp_path / "b" / "2.eps")
    (tmp_path / "b" / "2.eps").rename(tmp_path / "b" / "2.png")  # pillow would start Ghostscript
    with pytest.raises(DataError, match="2.png cannot be read as an image .cannot identify"):
        data.load(tmp_path)


def test_pixels_of_thirty_two_bits_are_refused(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        Image.fromarray(np.full((5, 4), 70_000, np.int32)).save(tmp_path / name / "1.tif")
    with pytest.raises(DataError, match="1.tif cannot be read as an image .its pixels have 32 bits, where 8 or 16"):
        data.load(tmp_path)


def test_a_folder_of_images_that_needs_more_memory_than_there_is_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        save(tmp_path / name / "1.png", mode="L")
    monkeypatch.setattr(os, "sysconf", lambda name: 5)
    with pytest.raises(
        DataError, match="the 2 images of .*1.png and other files would need 0.0 GB of memory, this machine has"
    ):
        data.load(tmp_path)


def test_names_that_are_not_valid_text_are_refused_or_shown_with_their_bytes(tmp_path: Path) -> None:
    for name in "ab":
        save(tmp_path / name / "1.png", mode="L")
    file = tmp_path / "a" / os.fsdecode(b"caf\xe9.png")
    file.write_bytes(b"x")
    with pytest.raises(DataError, match=r"caf\\udce9.png cannot be read as an image") as caught:
        data.load(tmp_path)
    str(caught.value).encode()
    save(file, mode="L")
    assert len(data.load(tmp_path).train) == 3
    save(tmp_path / os.fsdecode(b"caf\xe9") / "1.png", mode="L")
    with pytest.raises(DataError, match=r"expected printable folder names .*got .caf.*udce9.; rename the folder"):
        data.load(tmp_path)


def test_paths_that_cannot_be_looked_at_are_refused() -> None:
    with pytest.raises(DataError, match="cannot be read: File name too long"):
        data.load("a" * 5000)


def test_grey_images_among_colored_ones_take_no_color_from_them(tmp_path: Path) -> None:
    save(tmp_path / "a" / "1.png", mode="L", value=9)
    save(tmp_path / "b" / "2.png")
    assert data.load(tmp_path).train.images[:, :, 0, 0].tolist() == [[9, 9, 9], [7, 2, 3]]


@pytest.mark.parametrize(("seed", "names"), [(0, "classes birds, cats"), (4, "class cats")])
def test_a_split_that_leaves_no_training_image_of_a_class_is_refused(tmp_path: Path, seed: int, names: str) -> None:
    for name, count in (("birds", 4), ("cats", 1), ("dogs", 4)):
        for i in range(count):
            save(tmp_path / name / f"{i}.png", mode="L", value=i + count)
    message = f"some are all that {tmp_path.name} has of {names}; .* \\(--validation 0\\)"
    for stream in (False, True):
        settings = Settings(data=str(tmp_path), stream=stream, training=TrainConfig(seed=seed))
        with pytest.raises(ConfigError, match=message):
            building.load_images(settings.replace(validation=7))
        assert len(building.load_images(settings.replace(validation=6)).train) == 3
        assert len(building.load_images(settings.replace(validation=0)).train) == 9


def test_files_that_are_not_read_are_named(tmp_path: Path) -> None:
    for name in "ab":
        save(tmp_path / name / "1.png")
    (tmp_path / "a" / "notes.txt").write_text("not an image")
    (tmp_path / "b" / "photo.heic").write_bytes(b"not a known format")
    save(tmp_path / "loose.png")
    with pytest.warns(UserWarning, match="3 files were not read: a/notes.txt, b/photo.heic, loose.png; expected names"):
        assert len(data.load(tmp_path).train) == 2


@pytest.mark.parametrize("validation", [None, "val", "valid", "validation", "Val"])
@pytest.mark.parametrize("test", [None, "test"])
def test_a_folder_with_folders_for_its_parts(tmp_path: Path, validation: str | None, test: str | None) -> None:
    for part, n in (("train", 3), (validation, 2), (test, 1)):
        for name in ("one", "two"):
            for i in range(n if part else 0):
                save(tmp_path / str(part) / name / f"{i}.png", mode="L", value=i)
    found = data.load(str(tmp_path))
    assert found.classes == ("one", "two")
    assert found.train.images.shape == (6, 1, 5, 4)
    assert (found.valid is None, found.test is None) == (validation is None, test is None)
    if found.valid is not None:
        assert found.valid.labels.tolist() == [0, 0, 1, 1]
    if found.test is not None:
        assert found.test.labels.tolist() == [0, 1]


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    for name in ("car", "train"):
        save(tmp_path / name / "1.png")
    assert data.load(tmp_path).classes == ("car", "train")


def test_validation_images_of_ones_own_are_those_that_a_run_validates_on(tmp_path: Path) -> None:
    g = np.random.default_rng(0)
    for part, n in (("train", 6), ("val", 2)):
        for name in ("one", "two"):
            (tmp_path / part / name).mkdir(parents=True)
            for i in range(n):
                Image.fromarray(g.integers(0, 255, (5, 4), np.uint8)).save(tmp_path / part / name / f"{i}.png")
    whole = data.load(tmp_path)
    images = building.load_images(Settings(data=str(tmp_path)))
    assert whole.valid is not None
    assert torch.equal(images.valid.images, whole.valid.images)
    assert torch.equal(images.train.images, whole.train.images)
    assert images.test is None
    with pytest.raises(ConfigError, match="validation is for data without validation images, but .* has 4 of its own"):
        building.load_images(Settings(data=str(tmp_path), validation=3))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: (save(p / "a" / "1.png"), save(p / "b" / "2.png", (6, 6))), "images must have one size: .*2.png has 6x6"),
        (
            lambda p: (save(p / "a" / "1.png"), (p / "b").mkdir()),
            r"b expected image files \(.png, .*\), got none; add images",
        ),
        (
            lambda p: (save(p / "a" / "1.png"), (p / "b").mkdir(), (p / "b" / "2.svg").write_text("<svg/>")),
            "b expected image files .*, got 2.svg; add images, convert them .* or remove",
        ),
        (lambda p: save(p / "a" / "1.png"), "a sub-folder of images for each class, at least two, got a; move"),
        (
            lambda p: (save(p / "a" / "1.png"), save(p / "b" / "2.png"), (p / "b" / "3.png").write_bytes(b"x")),
            "3.png cannot be read",
        ),
        (
            lambda p: (
                save(p / "train" / "a" / "1.png"),
                save(p / "train" / "b" / "1.png"),
                *(save(p / "test" / c / "1.png") for c in "bc"),
            ),
            "test expected the classes of .*train, got c as well; add training images of that class",
        ),
        (
            lambda p: [*(save(p / "train" / c / "1.png") for c in "ab"), (p / "test" / "a").mkdir(parents=True)],
            "test expected image files .* in folders of its classes, got none; add images, or remove the folder",
        ),
        (
            lambda p: [save(p / part / "a" / "1.png") for part in ("val", "test")],
            "expected sub-folders train, test and one of",
        ),
        (
            lambda p: [save(p / part / "a" / "1.png") for part in ("train", "test", "cats")],
            "expected sub-folders train, test and one of val, valid, validation, .* got cats, test, train; move or rename",
        ),
        (lambda p: [save(p / part / "a" / "1.png") for part in ("train", "val", "valid")], "got train, val, valid; move"),
        (
            lambda p: [save(p / "train" / c / "1.png") for c in "ab"] + [save(p / "val" / "a" / "2.png", (9, 9))],
            "2.png has 9x9 pixels, .*1.png 5x4; crop them, or resize",
        ),
        (
            lambda p: (
                save(p / "a" / "1.png"),
                (p / "b").mkdir(),
                Image.fromarray(np.zeros((5, 4), np.float32)).save(p / "b" / "2.tif"),
            ),
            "2.tif cannot be read as an image .its pixels are floating-point numbers",
        ),
    ],
)
def test_folders_that_will_not_do_are_refused_with_the_file(tmp_path: Path, make: Any, message: str) -> None:
    make(tmp_path)
    with pytest.raises(DataError, match=message):
        data.load(tmp_path)


def test_photos_are_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    Image.new("RGB", (24, 32)).save(tmp_path / "photo.jpg", exif=exif)
    assert data.own.read_image(tmp_path / "photo.jpg").shape == (3, 24, 32)


@pytest.mark.parametrize("parts", [("testing", "train"), ("testing", "training"), ("dev", "test")])
def test_a_part_with_another_name_is_not_taken_for_a_class(tmp_path: Path, parts: tuple[str, str]) -> None:
    for part in parts:
        for kind in ("cat", "dog"):
            save(tmp_path / part / kind / "a.png")
    with pytest.raises(DataError, match=f"expected sub-folders train, test and one of .*, got {', '.join(parts)}"):
        data.load(tmp_path)


def test_classes_may_have_the_same_sub_folders(tmp_path: Path) -> None:
    for kind in ("cat", "dog"):
        for place in ("indoors", "outdoors"):
            save(tmp_path / kind / place / "a.png")
    assert data.load(tmp_path).classes == ("cat", "dog")


def test_a_path_that_is_wrong_is_the_error_also_where_images_are_to_be_resized(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown data set .*nowhere.* this is neither"):
        data.load(tmp_path / "nowhere", resize=14)
