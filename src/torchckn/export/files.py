"""Programs in files, for torch.export and ONNX, compared with the network before they are written."""

from __future__ import annotations

import copy
import importlib
import io
import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import ConfigError, DataError, NumericalError, TranslationError
from ..files import write_atomically
from ..network import Classifier
from .modules import plain, require_network

#: largest allowed difference from the network's probabilities, as a fraction of the image's largest one
TOLERANCE = 1e-5


def to_torch(network: Classifier, path: str | os.PathLike[str], *, uint8_input: bool = False) -> Path:
    """Write the network to ``path`` as a program for ``torch.export.load(path).module()``, with any batch size.

    Input and output as in :func:`plain`: images, class probabilities. For the CPU, in the dtype of the network.
    """
    require_network("to_torch", network)
    path = _file_path("to_torch", path)
    network = copy.deepcopy(network).cpu().eval()
    with _quiet_exporter("torch.export"):
        file = io.BytesIO()
        torch.export.save(_program(network, uint8_input), file)
        written = torch.export.load(io.BytesIO(file.getvalue())).module()
    _compare("torch.export", network, uint8_input, written)
    write_atomically(path, file.getvalue())
    return path


def to_onnx(
    network: Classifier,
    path: str | os.PathLike[str],
    *,
    opset: int = 18,
    uint8_input: bool = False,
    classes: Sequence[str] | None = None,
) -> Path:
    """Write the network to ``path`` as an ONNX model, in float32, from ``images`` (any batch size) to ``probabilities``.

    Before the file is written, onnxruntime (if it is not installed, onnx) runs the model, and its output is compared with the
    network's. Needs ``torchckn[export]``.

    Args:
        network: a CKN or a ScaledConvNet.
        path: of the file; its folder is created if needed.
        opset: version of the ONNX operator set, at least 18.
        uint8_input: images are uint8 from 0 to 255 instead of floats between 0 and 1.
        classes: names of the classes, stored in the model's metadata under ``classes`` as a JSON list.
    """
    require_network("to_onnx", network)
    path = _file_path("to_onnx", path)
    if not isinstance(opset, int) or opset < 18:
        raise ConfigError(f"opset expected an integer >= 18, got {opset!r}; older versions are not supported")
    count = network.head.out_features
    if classes is not None and (isinstance(classes, str) or len(classes) != count):
        raise ConfigError(f"classes expected a list of {count} names, one per class, got {classes!r}")
    for package in ("onnx", "onnxscript"):
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise ConfigError(
                f"to_onnx needs {package}, which is not installed; install it with: pip install 'torchckn[export]'"
            ) from error
    network = copy.deepcopy(network).to("cpu", torch.float32).eval()
    with _quiet_exporter("ONNX"):
        exported = torch.onnx.export(
            _program(network, uint8_input),
            dynamo=True,
            opset_version=opset,
            input_names=["images"],
            output_names=["probabilities"],
            verbose=False,
        )
    assert exported is not None
    model = exported.model_proto
    if opset not in [operators.version for operators in model.opset_import]:
        raise ConfigError(f"the installed onnxscript and onnx cannot write opset {opset}; use a lower opset, 18 by default")
    _tidy(model.graph)
    if classes is not None:
        model.metadata_props.add(key="classes", value=json.dumps([str(name) for name in classes]))
    content = model.SerializeToString()
    _compare("ONNX", network, uint8_input, _onnx_runner(content))
    write_atomically(path, content)
    return path


def _program(network: Classifier, uint8_input: bool) -> torch.export.ExportedProgram:
    images = torch.zeros(2, *network.input_shape, dtype=torch.uint8 if uint8_input else network.head.weight.dtype)
    batch = {"images": {0: torch.export.Dim("batch")}}
    with torch.no_grad():
        program = torch.export.export(plain(network, uint8_input=uint8_input), (images,), dynamic_shapes=batch)
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # otherwise the file would contain source lines and the paths of their files
    return program


def _tidy(graph: Any) -> None:
    """Name the batch dimension, and remove the exporter's metadata: source lines, intermediate shapes."""
    for value in (*graph.input, *graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    for part in (*graph.node, *graph.input, *graph.output, *graph.initializer):
        part.ClearField("metadata_props")
    graph.ClearField("value_info")


def _onnx_runner(content: bytes) -> Callable[[Tensor], Tensor]:
    try:
        session = importlib.import_module("onnxruntime").InferenceSession(content, providers=["CPUExecutionProvider"])
    except ImportError:
        session = importlib.import_module("onnx.reference").ReferenceEvaluator(content)
    return lambda images: torch.from_numpy(session.run(["probabilities"], {"images": images.numpy()})[0])


@torch.no_grad()
def _compare(what: str, network: Classifier, uint8_input: bool, run: Callable[[Tensor], Tensor]) -> None:
    """Run both on random images, on a single one and on several, and raise an error if the results differ."""
    noise = torch.rand(3, *network.input_shape, generator=torch.Generator().manual_seed(0))
    pixels = (255 * noise).to(torch.uint8) if uint8_input else noise.to(network.head.weight.dtype)
    expected = _probabilities(network, pixels)
    # With large scores, float32 rounding exceeds the tolerance. The network in float64 shows how much of the error is rounding.
    rounding = _difference(_probabilities(copy.deepcopy(network).double(), pixels), expected)
    allowed = max(TOLERANCE, 10 * rounding)
    for images, probabilities in ((pixels[:1], expected[:1]), (pixels, expected)):
        difference = _difference(run(images), probabilities)
        if not difference <= allowed:
            raise NumericalError(
                f"expected the {what} program to differ from the network by at most {allowed:.0e} of an image's largest "
                f"probability, got {difference:.1e}; nothing was written. Check for modules that behave differently when exported"
            )


def _probabilities(network: Classifier, images: Tensor) -> Tensor:
    return torch.softmax(network(network.pixels(images)), 1)


def _difference(actual: Tensor, expected: Tensor) -> float:
    """The largest difference, as a fraction of the image's largest probability."""
    return ((actual - expected).abs() / expected.amax(1, keepdim=True)).max().item()


def _file_path(function: str, path: str | os.PathLike[str]) -> Path:
    if Path(path).is_dir():
        raise DataError(f"{function} expected the path of a file, got the folder {path}; add a file name")
    return Path(path)


@contextmanager
def _quiet_exporter(what: str) -> Iterator[None]:
    """Run torch's exporters without their log messages and warnings, and convert their errors."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except RuntimeError as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise TranslationError(
            f"this network cannot be exported for {what}: {reason}; replace the module that causes it, usually a custom module "
            "whose forward pass depends on the values of its input"
        ) from error
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
