"""Damaged checkpoints: ``python -m tests.faults.checkpoints FOLDER COUNT``. Resumed runs are equal, or say what is wrong."""

from __future__ import annotations

import contextlib
import copy
import random
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from torchckn import CKNError
from torchckn.files import read_tensors, write_tensors

from ..training import StopAfter, StopHereError, trained
from .harness import try_all
from .models import ODD, _damage, _odd_tensor

OPTIONS: dict[str, Any] = {"steps": 6, "momentum": 0.9, "final_head": False, "keep_best": True}


def main(folder: Path, count: int) -> None:
    expected = trained(**OPTIONS)[0].state_dict()
    start, run = folder / "start", folder / "run"
    with contextlib.suppress(StopHereError):
        trained(run_dir=start, checkpoint_every=2, callbacks=[StopAfter(5)], **OPTIONS)
    last = run / "checkpoint" / "last.safetensors"

    def resumed(kind: str, change: Callable[[], None]) -> str:
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(start, run)
        change()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                net, _ = trained(run_dir=run, resume=True, **OPTIONS)
            except CKNError as error:
                return "FAILED no message" if not str(error) else "refused"
        equal = all(torch.equal(value, expected[name]) for name, value in net.state_dict().items())
        fell_back = any("continues from the checkpoint before it" in str(warning.message) for warning in said)
        if not equal:  # a digest says that nothing was damaged, not who wrote it
            return "resumed from what was forged" if kind in ("fact", "tensor") else "FAILED resumed to other weights"
        return "resumed to the same weights from the checkpoint before it" if fell_back else "resumed to the same weights"

    def faults() -> Iterator[tuple[str, Callable[[], str]]]:
        chance = random.Random(0)
        for number in range(count):
            kind = chance.choice(("bit", "bit", "cut", "cut", "bytes", "both", "gone", "fact", "fact", "tensor", "metrics"))
            seed = chance.randrange(2**32)
            yield f"{number} {kind} {seed}", lambda k=kind, s=seed: resumed(k, lambda: spoil(k, random.Random(s)))  # type: ignore[misc]

    def spoil(kind: str, chance: random.Random) -> None:
        if kind in ("fact", "tensor"):
            _rewrite(last, kind, chance)
        elif kind == "gone":
            chance.choice([last, last.with_name("previous.safetensors")]).unlink()
        elif kind == "metrics":
            file = run / "metrics.jsonl"
            content = file.read_bytes()
            file.write_bytes(_damage(chance, chance.choice(("bit", "cut", "bytes")), content))
        else:
            for file in (last, last.with_name("previous.safetensors"))[: 2 if kind == "both" else 1]:
                file.write_bytes(_damage(chance, "bytes" if kind == "both" else kind, file.read_bytes()))

    try_all(faults())


def _rewrite(path: Path, kind: str, chance: random.Random) -> None:
    """Other content with a digest that matches: of a run of something else, or by a hand that means harm."""
    facts, tensors = read_tensors(path, "checkpoint")
    if kind == "tensor":
        _odd_tensor(chance, tensors)
    else:
        key = chance.choice(sorted(facts))
        if chance.random() < 0.2:
            del facts[key]
        else:
            facts[key] = copy.deepcopy(chance.choice(ODD))
    try:
        write_tensors(path, "checkpoint", facts, tensors)
    except ValueError:
        path.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
