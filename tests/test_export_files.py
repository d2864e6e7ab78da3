"""Files of exported networks: what they contain, and what is refused."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import torchckn
from torchckn import export, zoo
from torchckn.errors import CKNError, ConfigError, DataError, NumericalError, TranslationError
from torchckn.graph import AdaptiveAveragePool, Conv, Graph, Whiten

from . import forks
from .exporting import probabilities


@pytest.mark.parametrize("opset", [18, pytest.param(20, marks=pytest.mark.slow)])
def test_an_onnx_file_is_written_quietly_and_names_its_inputs_outputs_and_classes(
    tmp_path: Path,
    small_network: torchckn.CKN,
    opset: int,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    classes = ["cat", "dog", "\u00e9toile"]
    path = export.to_onnx(small_network, tmp_path / "new folder" / "model.onnx", opset=opset, classes=classes)
    require_quiet_and_without_paths(path.read_bytes(), capfd, caplog)
    assert path == tmp_path / "new folder" / "model.onnx"
    assert [file.name for file in path.parent.iterdir()] == ["model.onnx"]
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    assert [(operators.domain, operators.version) for operators in model.opset_import] == [("", opset)]
    assert {entry.key: json.loads(entry.value) for entry in model.metadata_props} == {"classes": classes}
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    ends = [(end.name, end.shape, end.type) for end in (*session.get_inputs(), *session.get_outputs())]
    assert ends == [
        ("images", ["batch", 1, 10, 10], "tensor(float)"),
        ("probabilities", ["batch", 3], "tensor(float)"),
    ]


def test_a_program_for_torch_is_written_quietly_whatever_the_file_is_called(
    tmp_path: Path, small_network: torchckn.CKN, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    content = export.to_torch(small_network, tmp_path / "model").read_bytes()
    require_quiet_and_without_paths(content, capfd, caplog)


def require_quiet_and_without_paths(
    content: bytes, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert b"layers.conv.root" in content or b"layers_conv_root" in content  # the file can be searched for text
    assert b".py" not in content, "the path of a source file"
    assert capfd.readouterr() == ("", "")
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


class DifferentWhenExported(nn.Module):
    """Computes another function in an exported graph."""

    def forward(self, x: Tensor) -> Tensor:
        return 1.01 * x if torch.compiler.is_compiling() else x


class DataDependent(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


def convnet_with(module: nn.Module) -> torchckn.ScaledConvNet:
    """A ConvNet with the same weights every time."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), module, nn.ReLU(), nn.Flatten(), nn.Linear(4 * 64, 3))
    return torchckn.ScaledConvNet(net, (1, 10, 10)).initialize_(0.5, torch.Generator().manual_seed(0))


_CONVERTED: dict[tuple[str, int], bytes] = {}


@pytest.fixture
def _converted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of the same code are converted to ONNX once; the networks of the tests with this fixture have equal weights."""
    convert = torch.onnx.export

    def convert_once(program: torch.export.ExportedProgram, *, opset_version: int, **options: Any) -> Any:
        key = program.graph_module.code, opset_version
        if key not in _CONVERTED:
            converted = convert(program, opset_version=opset_version, **options)
            assert converted is not None
            _CONVERTED[key] = converted.model_proto.SerializeToString()
        return SimpleNamespace(model_proto=onnx.load_from_string(_CONVERTED[key]))

    monkeypatch.setattr(torch.onnx, "export", convert_once)


@pytest.mark.usefixtures("_converted_once")
@pytest.mark.parametrize("runtime", ["onnxruntime", "onnx itself", "torch"])
def test_a_program_that_differs_from_the_network_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: str
) -> None:
    if runtime == "onnx itself":
        monkeypatch.setitem(sys.modules, "onnxruntime", None)
    write = export.to_torch if runtime == "torch" else export.to_onnx
    if runtime == "onnx itself":  # which no other test has
        write(convnet_with(nn.Identity()), tmp_path / "good")
    with pytest.raises(NumericalError, match=r"program to differ from the network by at most 1e-05 .* nothing was written"):
        write(convnet_with(DifferentWhenExported()), tmp_path / "bad")
    assert not (tmp_path / "bad").exists()


def test_float32_rounding_of_large_scores_is_not_an_error(small_network: torchckn.CKN) -> None:
    def off(images: Tensor) -> Tensor:
        return probabilities(small_network, images) * (1 + 1e-4)

    with pytest.raises(NumericalError, match="differ from the network by at most .* got 1.0e-04"):
        export.files._compare("other", small_network, False, off)
    with torch.no_grad():
        small_network.head.bias.add_(10_000.0)  # probabilities stay the same, but scores keep only three decimals
    export.files._compare("other", small_network, False, off)


@pytest.mark.parametrize("write", [export.to_onnx, export.to_torch])
def test_a_network_with_data_dependent_control_flow_is_refused(tmp_path: Path, write: Any) -> None:
    with pytest.raises(TranslationError, match="this network cannot be exported for .*: .*; replace the module"):
        write(convnet_with(DataDependent()), tmp_path / "model")


@pytest.mark.parametrize("function", [export.plain, export.to_onnx, export.to_torch])
def test_a_module_that_is_not_a_classifier_is_refused(tmp_path: Path, function: Any) -> None:
    arguments = () if function is export.plain else (tmp_path / "model",)
    with pytest.raises(
        DataError, match=f"{function.__name__} expected a torchckn.CKN or a torchckn.ScaledConvNet, got LeNet1"
    ):
        function(zoo.build("lenet1"), *arguments)


def test_a_network_of_random_features_is_refused(small_graph: Graph) -> None:
    graph = Graph((1, 10, 10), [node for node in small_graph.nodes if node.name != "dense"])
    with pytest.raises(ConfigError, match="expected a network with weights='nystrom', got weights='random-features'"):
        export.plain(torchckn.CKN(graph, weights="random-features"))


@pytest.mark.usefixtures("_converted_once")
@pytest.mark.parametrize("write", [export.to_onnx, export.to_torch])
def test_a_path_that_cannot_be_written_to_is_an_error(tmp_path: Path, write: Any) -> None:
    small = convnet_with(nn.Identity())
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="cannot write .*model: .*; choose a folder that can be written to"):
        write(small, tmp_path / "file" / "model")
    with pytest.raises(DataError, match=f"{write.__name__} expected the path of a file, got the folder"):
        write(small, tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"opset": 11}, "opset expected an integer >= 18, got 11"),
        ({"opset": "18"}, "opset expected an integer >= 18, got '18'"),
        ({"opset": 999}, "cannot write opset 999; use a lower opset"),
        ({"classes": ["a", "b"]}, "classes expected a list of 3 names, one per class, got"),
        ({"classes": "abc"}, "classes expected a list of 3 names, one per class, got 'abc'"),
    ],
)
def test_options_that_cannot_be_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        export.to_onnx(convnet_with(nn.Identity()), tmp_path / "model.onnx", **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("package", ["onnx", "onnxscript"])
def test_the_error_for_a_missing_package_says_how_to_install_it(
    tmp_path: Path, small_network: torchckn.CKN, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        CKNError, match=f"needs {package}, which is not installed; install it with: pip install 'torchckn\\[export\\]'"
    ):
        export.to_onnx(small_network, tmp_path / "model.onnx")


def test_importing_the_module_imports_no_onnx() -> None:
    code = "import sys, torchckn.export; print([name for name in sys.modules if name.startswith('onnx')])"
    assert forks.run(["-c", code], check=True).stdout == "[]\n"


def test_half_whitening_is_not_exported(tmp_path: Path) -> None:
    graph = Graph((3, 8, 8), [Whiten("whiten", root=4), Conv("conv", filters=4), AdaptiveAveragePool("pool")])
    with pytest.raises(TranslationError, match="expected whitening by the inverse square root, got root=4; use root=2"):
        export.to_onnx(torchckn.CKN(graph).eval(), tmp_path / "model.onnx")
