"""Run folders and files of settings that can be read, but say odd things."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path


def _metrics_folder(run: Path) -> None:
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").mkdir()


def _no_checkpoint(run: Path) -> None:
    shutil.rmtree(run / "checkpoint")
    (run / "result.json").unlink()


def _damaged_checkpoints(run: Path) -> None:
    (run / "result.json").unlink()
    for file in (run / "checkpoint").iterdir():
        file.write_bytes(b"x")


def odd_runs() -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Run folders whose files can be read, but say odd things."""

    def write(file: str, content: str | bytes) -> Callable[[Path], None]:
        return lambda run: (run / file).write_bytes(content.encode() if isinstance(content, str) else content) and None

    def config(old: str, new: str) -> Callable[[Path], None]:
        def change(run: Path) -> None:
            text = (run / "config.toml").read_text()
            assert old in text, old
            (run / "config.toml").write_text(text.replace(old, new, 1))

        return change

    for name, content in {
        "empty": "",
        "list": "[]",
        "number": "3",
        "null": "null",
        "text": '"x"',
        "deep": "[" * 100_000,
        "nan": '{"seconds": NaN}',
        "seconds": '{"seconds": "long"}',
        "head": '{"head": 3}',
        "heads": '{"head": {"accuracy": "good"}}',
        "test": '{"test_accuracy": [1]}',
        "tests": '{"test_accuracy": 1e400}',
        "lam": '{"lam": {}}',
        "empties": "{}",
        "digits": '{"seconds": ' + "9" * 5000 + "}",
        "markup": '{"stopped": "[/bold]x"}',
    }.items():
        yield f"result-{name}", write("result.json", content)
    for name, content in {
        "step": '{"step": 1e400}\n',
        "bool": '{"step": true}\n',
        "big": '{"step": ' + "9" * 400 + "}\n",
    }.items():
        yield f"metrics-{name}", write("metrics.jsonl", content)
    yield "metrics-accuracy", write("metrics.jsonl", '{"step": 1, "valid_accuracy": NaN, "seconds": Infinity}\n')
    yield "metrics-folder", _metrics_folder
    for name, content in {
        "empty": "",
        "settings": "settings = 3\n",
        "training": "training = 'x'\n",
        "lists": "training = []\nsettings = []\n",
        "deep": "a = " + "[" * 5000,
        "latin": b"a = '\xff'",
        "dates": "network = 1979-05-27\n[training]\nsteps = 1979-05-27\n",
        "names": "network = '[/bold]x'\n[training]\nmethod = '[red]'\nsteps = 'many'\n",
        "numbers": "network = 3\n[training]\nmethod = 4\n",
        "tables": "network = {a = 1}\n[training]\nmethod = [1]\nsteps = {}\n",
        "times": "t = 07:32:00\nnetwork = 'x'\n",
        "inf": "network = 'x'\ny = inf\n[training]\nsteps = nan\n",
        "dots": "[settings.network]\na = 1\n[training]\n",
    }.items():
        yield f"config-{name}", write("config.toml", content)
    yield "config-bold", config('network = "lenet1"', 'network = "[/bold]x"')
    yield "config-code", config('network = "lenet1"', 'network = "nowhere/x.py:Net"')
    yield "config-classes", config("classes = [", "classes_of = [")
    yield "config-shape", config("image_shape = [", 'image_shape = ["a", ')
    yield "config-mean", config("mean = [", 'mean = ["a", ')
    yield "config-seed", config("seed = 0", f"seed = {2**63}")
    yield "config-steps", config("steps = 1", "steps = -1")
    yield "config-lr", config('lr = "', 'lr = "[/bold]')
    yield "config-convnet", config('kind = "ckn"', 'kind = "convnet"')
    yield "model-empty", write("model/model.safetensors", "")
    yield "checkpoint-none", _no_checkpoint
    yield "checkpoint-files", _damaged_checkpoints
    yield "filters-name", write("checkpoint/filters-x.safetensors", "x")


def toml_files() -> Iterator[tuple[str, bytes]]:
    """Settings that no one would write by hand."""
    yield "brackets", b"a = " + b"[" * 20_000
    yield "tables", b"[" * 5000
    yield "nested", b"".join(b"[" + b".".join([b"a"] * n) + b"]\n" for n in range(1, 300))
    yield "latin", b"network = '\xff'"
    yield "nul", b"network = '\x00'"
    yield "types", b"network = 3\nsteps = 'x'\noptions = 3\n"
    yield "big", b"seed = " + b"9" * 5000
    yield "date", b"steps = 1979-05-27T07:32:00Z\n"
    yield "nan", b"lr = nan\n"
    yield "options", b"[options]\nfilters = 8\n"
    yield "bold", b"network = '[/bold]x'\n"
    yield "key", b"'[/bold]' = 1\n"
