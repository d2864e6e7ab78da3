"""Reports of the networks of the zoo, for tests."""

from __future__ import annotations

import functools
from typing import Any

import torchckn
from torchckn import translate, zoo
from torchckn.correspondence import Report, Row
from torchckn.kernels import RBFSphere

#: deep networks have wide layers anyway, because they concatenate and expand: few filters save time
DEEP = {"convnext-atto", "densenet", "efficientnet-b0", "mobilenetv2", "seresnet50", "wideresnet"}


@functools.cache
def network(name: str, chosen: bool = False) -> torchckn.CKN:
    """A network of the zoo, with the kernel that matches each activation or one that was chosen for all layers."""
    kernel = RBFSphere(0.6) if chosen else "match"
    filters = 16 if name in DEEP else 128
    return translate(zoo.build(name, filters=filters), None, kernel, linear_kernel=RBFSphere(0.6) if chosen else None)


def report_of(name: str, chosen: bool = False) -> Report:
    report = network(name, chosen).report
    assert report is not None
    return report


def lines_of(report: Report, width: int = 80, ascii_only: bool = False, why: bool = False) -> list[str]:
    return [line.plain for line in report.table(why=why).lines(width, ascii_only)]


def row(source: str = "conv", **fields: Any) -> Row:
    return Row(**{"name": source, "source": source, "operation": "Conv2d", "correspondence": "exact"} | fields)
