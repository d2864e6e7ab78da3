"""What a run was made with: versions, hardware and git state."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import torch


def environment() -> dict[str, Any]:
    """Versions, hardware and git state, as they are now."""
    packages = ("torchckn", "torch", "numpy", "scipy", "scikit-learn")
    return {
        "versions": {"python": platform.python_version(), **{name: metadata.version(name) for name in packages}},
        "platform": platform.platform(),
        **_processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "git": _git("rev-parse", "HEAD"),
        "git_changes": bool(_git("status", "--porcelain")),
    }


def _processor(about: Path = Path("/proc/cpuinfo")) -> dict[str, str | None]:
    """Its name, and its family and model where the system says so: processors of one name may differ twofold in speed."""
    facts: dict[str, str] = {}
    try:
        for key, _, value in (line.partition(":") for line in about.read_text(encoding="utf-8").splitlines()):
            facts.setdefault(key.strip(), value.strip())
    except OSError:
        pass
    known = {"cpu family", "model"} <= facts.keys()
    return {
        "processor": facts.get("model name") or platform.processor(),
        "processor_model": f"family {facts['cpu family']}, model {facts['model']}" if known else None,
    }


def _git(*arguments: str) -> str | None:
    """An answer of git about torchckn's own checkout; None if torchckn is installed, wherever it is installed."""
    package = Path(__file__).parent.parent
    checkout = package.parent.parent
    if package != checkout / "src" / "torchckn" or not (checkout / ".git").exists():
        return None
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}  # which may name another one
    try:
        done = subprocess.run(["git", "-C", str(checkout), *arguments], capture_output=True, text=True, timeout=10, env=env)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
