from __future__ import annotations

import copy
import json
import logging
import sys
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import torchckn
from torchckn import export, kernels, zoo
from torchckn.data import Preprocessing
from torchckn.errors import CKNError, ConfigError, DataError, NumericalError, TranslationError
from torchckn.graph import AdaptiveAveragePool, Conv, Dense, DirectSum, GaussianPool, Graph, MaxPool, Node, Whiten
from torchckn.nn.whitening import Whitening
from torchckn.zoo import ConvNet

from . import forks
from .collection_networks import COLLECTIONS
from .public_networks import PUBLIC
from .test_graph import every_operation

RBF = kernels.RBFSphere(0.6)


def photographs(count: int, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Noise of many contrasts and colours, so that the networks' outputs differ between images."""
    colour, contrast = (torch.rand(count, channels, 1, 1, generator=generator) for channels in (shape[0], 1))
    return colour * (1 - contrast) + contrast * torch.rand(count, *shape, generator=generator)


def fitted(ckn: torchckn.CKN, images: Tensor, generator: torch.Generator) -> torchckn.CKN:
    """As after training: filters from patches, calibrated features, and a head whose scores differ between images."""
    torchckn.fit_filters(ckn, images, patches=200, init="random", generator=generator, progress=False)
    with torch.no_grad():
        ckn.eval().scaling.calibrate(ckn.features(images))
        ckn.head.weight.normal_(generator=generator)
    return ckn


def probabilities(network: nn.Module, images: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.softmax(network(images), 1)


def run_onnx(path: Path, images: Tensor) -> Tensor:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (found,) = session.run(["probabilities"], {"images": images.numpy()})
    assert isinstance(found, np.ndarray)
    return torch.from_numpy(found)


def difference(found: Tensor, expected: Tensor) -> float:
    """The largest difference, as a fraction of an image's largest probability."""
    assert found.shape == expected.shape
    return ((found - expected).abs() / expected.amax(1, keepdim=True)).max().item()


def assert_depends_on_the_image(expected: Tensor) -> None:
    """Otherwise constants would be compared."""
    assert (expected - expected[0]).abs().max() > 1e-3


def translated(
    net: nn.Module, shape: tuple[int, int, int], kernel: kernels.Kernel | Literal["match"], whiten: bool = False
) -> tuple[torchckn.CKN, Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = photographs(6, shape, generator)
    pixels = Preprocessing.fit(images, whiten=whiten)
    ckn = torchckn.translate(net, shape, kernel=kernel, preprocessing=pixels, centering="none", generator=generator)
    return fitted(ckn, images, generator), images


def from_zoo(name: str, kernel: kernels.Kernel | Literal["match"]) -> tuple[torchckn.CKN, Tensor]:
    net: ConvNet = zoo.build(name, filters=8, classes=10)
    return translated(net, net.input_shape, kernel)


def mostly_slow(*quick: str) -> list[Any]:
    """All names of the zoo. Files of networks other than these take ten seconds each."""
    return [*quick, *(pytest.param(name, marks=pytest.mark.slow) for name in zoo.names() if name not in quick)]


#: The plain network, from which files are made, is compared by all tests, and files by the slow ones: each takes five seconds.
files = pytest.mark.parametrize("as_file", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["plain", "onnx"])


def check_plain(ckn: torchckn.CKN, images: Tensor) -> Tensor:
    expected = probabilities(ckn, images)
    assert_depends_on_the_image(expected)
    assert difference(export.plain(ckn)(images), expected) < 1e-5
    return expected


def check_onnx(ckn: torchckn.CKN, images: Tensor, path: Path, as_file: bool = True) -> None:
    expected = check_plain(ckn, images)
    if as_file:
        assert difference(run_onnx(export.to_onnx(ckn, path), images), expected) < 1e-5


@pytest.mark.parametrize("name", ["lenet1", "allcnn"])
@pytest.mark.parametrize("kernel", [RBF, "match"], ids=str)
def test_networks_of_the_zoo_give_the_same_probabilities_as_plain_networks(name: str, kernel: Any) -> None:
    check_plain(*from_zoo(name, kernel))


@pytest.mark.parametrize("name", mostly_slow("lenet1"))
def test_every_network_of_the_zoo_gives_the_same_probabilities_in_onnxruntime(tmp_path: Path, name: str) -> None:
    check_onnx(*from_zoo(name, RBF), tmp_path / "model.onnx")


@files
@pytest.mark.parametrize("name", mostly_slow("lenet5"))
def test_so_do_networks_with_the_kernels_that_match_their_activations(tmp_path: Path, name: str, as_file: bool) -> None:
    check_onnx(*from_zoo(name, "match"), tmp_path / "model.onnx", as_file)


@files
@pytest.mark.parametrize("name", [*PUBLIC, *COLLECTIONS])
def test_so_do_networks_of_public_collections(tmp_path: Path, name: str, as_file: bool) -> None:
    check_onnx(*translated((PUBLIC | COLLECTIONS)[name](), (2, 8, 8), "match"), tmp_path / "model.onnx", as_file)


@files
def test_so_does_a_network_that_whitens_its_images(tmp_path: Path, as_file: bool) -> None:
    net = nn.Sequential(nn.Conv2d(27, 8, 1), nn.ReLU(), nn.AvgPool2d(4), nn.Flatten(), nn.Linear(8 * 16, 10))
    check_onnx(*translated(net, (3, 16, 16), RBF, whiten=True), tmp_path / "model.onnx", as_file)


KERNELS = [
    kernels.ArcCosine(0),
    kernels.ArcCosine(1),
    kernels.ArcCosine(2),
    kernels.Dual("gelu"),
    kernels.Linear(),
    kernels.Matern(0.5, 0.8),
    kernels.Matern(2.5, 0.8),
    kernels.Polynomial(2),
    kernels.Polynomial(3, offset=0.5),
    kernels.RBFSphere(0.15),
    kernels.RBFSphere(0.7, trainable=True),
]


def test_every_kernel_of_the_library_is_tested() -> None:
    classes = {k for k in vars(kernels).values() if isinstance(k, type) and issubclass(k, kernels.Kernel)}
    assert {type(kernel) for kernel in KERNELS} == classes - {kernels.Kernel}


@files
def test_a_network_of_all_kernels_gives_the_same_probabilities_in_onnxruntime(
    tmp_path: Path, generator: torch.Generator, as_file: bool
) -> None:
    names = [f"conv{i}" for i in range(len(KERNELS))]
    nodes: list[Node] = [
        Conv(name, inputs=("input",), filters=4, kernel_size=(3, 3), kernel=kernel)
        for name, kernel in zip(names, KERNELS, strict=True)
    ]
    ckn = torchckn.CKN(
        Graph((2, 6, 6), [*nodes, DirectSum("sum", inputs=tuple(names))]), centering="none", generator=generator
    )
    images = photographs(6, (2, 6, 6), generator)
    images[-1] = 0  # patches of norm zero
    check_onnx(fitted(ckn, images, generator), images, tmp_path / "model.onnx", as_file)


@files
def test_a_network_of_every_operation_gives_the_same_probabilities_in_every_form(
    tmp_path: Path, generator: torch.Generator, as_file: bool
) -> None:
    images = photographs(5, (3, 16, 16), generator)
    ckn = fitted(torchckn.CKN(every_operation(), classes=3, centering="feature", generator=generator), images, generator)
    ckn.layers["first"].kernel.sigma.data.fill_(0.8)  # a trained bandwidth
    ckn.head.weight.data.mul_(0.1)  # centered features are small, which makes rounding errors large
    wide = copy.deepcopy(ckn).double()
    exact = probabilities(wide, images.double())
    assert difference(export.plain(wide)(images.double()), exact) < 1e-12
    expected = probabilities(ckn, images)
    allowed = max(1e-5, 5 * difference(expected.double(), exact))  # the rounding of so many layers in float32
    assert_depends_on_the_image(expected)
    assert difference(export.plain(ckn)(images), expected) < allowed
    if not as_file:
        return
    assert difference(run_onnx(export.to_onnx(ckn, tmp_path / "onnx"), images), expected) < allowed
    program = torch.export.load(export.to_torch(ckn, tmp_path / "program.pt2")).module()
    for batch in (1, 2, 5):
        assert difference(program(images[:batch]), expected[:batch]) < allowed


@files
def test_pooling_to_a_size_that_does_not_divide_the_image_is_the_same_in_onnxruntime(
    tmp_path: Path, generator: torch.Generator, as_file: bool
) -> None:
    nodes = [
        Conv("conv", filters=4, kernel_size=(2, 2), groups=2),
        AdaptiveAveragePool("thirds", output_size=(3, 2)),
        GaussianPool("blur", inputs=("conv",), stride=3, padding=0),
        MaxPool("largest", inputs=("conv",), kernel_size=(3, 3), stride=(3, 3), ceil_mode=True),
        Dense("a", inputs=("thirds",), filters=4),
        Dense("b", inputs=("blur",), filters=4),
        Dense("c", inputs=("largest",), filters=4),
        DirectSum("sum", inputs=("a", "b", "c"), weights=(1, 2, 0.5)),
    ]
    ckn = torchckn.CKN(Graph((2, 11, 8), nodes), centering="none", generator=generator)
    images = photographs(5, (2, 11, 8), generator)
    check_onnx(fitted(ckn, images, generator), images, tmp_path / "model.onnx", as_file)


def test_a_convnet_with_scaled_features_is_exported_too(tmp_path: Path, generator: torch.Generator) -> None:
    net = zoo.build("lenet1", filters=4)
    images = photographs(5, (1, 28, 28), generator)
    convnet = torchckn.ScaledConvNet(net, preprocessing=Preprocessing.fit(images)).initialize_(0.2, generator)
    expected = probabilities(convnet.eval(), images)
    assert_depends_on_the_image(expected)
    convnet.train()
    assert difference(export.plain(convnet)(images), expected) < 1e-6
    assert difference(run_onnx(export.to_onnx(convnet, tmp_path / "model.onnx"), images), expected) < 1e-5
    assert convnet.training


@pytest.fixture
def small(small_graph: Graph, generator: torch.Generator) -> torchckn.CKN:
    ckn = torchckn.CKN(small_graph, classes=3, centering="none", generator=generator)
    return fitted(ckn, photographs(6, (1, 10, 10), generator), generator)


def test_a_float64_network_stays_float64_in_torch_and_becomes_float32_in_onnx(
    tmp_path: Path, small: torchckn.CKN, generator: torch.Generator
) -> None:
    ckn, images = small.double(), photographs(4, (1, 10, 10), generator).double()
    expected = probabilities(ckn, images)
    assert_depends_on_the_image(expected)
    assert difference(torch.export.load(export.to_torch(ckn, tmp_path / "a")).module()(images), expected) < 1e-11
    assert difference(run_onnx(export.to_onnx(ckn, tmp_path / "b"), images.float()).double(), expected) < 1e-5
    assert ckn.head.weight.dtype == torch.float64


def test_the_onnx_file_contains_no_linear_algebra(tmp_path: Path) -> None:
    nodes = [Whiten("white"), Conv("conv", filters=4, kernel_size=(3, 3)), Dense("dense", filters=4, inverse_sqrt="svd")]
    program = torch.export.load(export.to_torch(torchckn.CKN(Graph((1, 6, 6), nodes)), tmp_path / "program.pt2"))
    operations = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert {name for name in operations if "linalg" in name} == {"aten.linalg_vector_norm.default"}
    assert not {name for name in operations if any(bad in name for bad in ("eigh", "svd", "cholesky", "solve", "inverse"))}


def test_the_plain_network_is_a_copy_that_is_not_trained(small: torchckn.CKN) -> None:
    small.train()
    x = torch.rand(4, 1, 10, 10)
    plain = export.plain(small)
    before = plain(x)
    assert torch.allclose(before.sum(1), torch.ones(4))
    with torch.no_grad():
        small.layers["conv"].weight.copy_(small.layers["conv"].weight.flip(0))
        small.layers["dense"].kernel = RBF
        small.head.weight.zero_()
    assert torch.equal(plain(x), before)
    assert not plain.training
    assert small.training
    assert not any(parameter.requires_grad for parameter in plain.parameters())


def test_uint8_images_give_the_probabilities_of_their_float_pixels(tmp_path: Path, small: torchckn.CKN) -> None:
    images = torch.randint(256, (4, 1, 10, 10), dtype=torch.uint8)
    expected = probabilities(small, images / 255)
    assert_depends_on_the_image(expected)
    assert difference(export.plain(small, uint8_input=True)(images), expected) < 1e-6
    assert difference(run_onnx(export.to_onnx(small, tmp_path / "model", uint8_input=True), images), expected) < 1e-5
    path = export.to_torch(small, tmp_path / "program", uint8_input=True)
    assert difference(torch.export.load(path).module()(images), expected) < 1e-6


def test_images_of_the_wrong_dtype_are_refused(small: torchckn.CKN) -> None:
    with pytest.raises(DataError, match="expected uint8 images from 0 to 255, got torch.float32; see uint8_input"):
        export.plain(small, uint8_input=True)(torch.rand(1, 1, 10, 10))
    with pytest.raises(DataError, match="expected floating-point images from 0 to 1, got torch.uint8"):
        export.plain(small)(torch.zeros(1, 1, 10, 10, dtype=torch.uint8))


@pytest.mark.parametrize("opset", [18, pytest.param(20, marks=pytest.mark.slow)])
def test_an_onnx_file_names_its_inputs_outputs_and_classes(tmp_path: Path, small: torchckn.CKN, opset: int) -> None:
    path = export.to_onnx(small, tmp_path / "new folder" / "model.onnx", opset=opset, classes=["cat", "dog", "\u00e9toile"])
    assert path == tmp_path / "new folder" / "model.onnx"
    assert [file.name for file in path.parent.iterdir()] == ["model.onnx"]
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    assert [(operators.domain, operators.version) for operators in model.opset_import] == [("", opset)]
    assert {entry.key: json.loads(entry.value) for entry in model.metadata_props} == {
        "classes": ["cat", "dog", "\u00e9toile"]
    }
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    ends = [(end.name, end.shape, end.type) for end in (*session.get_inputs(), *session.get_outputs())]
    assert ends == [
        ("images", ["batch", 1, 10, 10], "tensor(float)"),
        ("probabilities", ["batch", 3], "tensor(float)"),
    ]


def test_exporting_is_quiet_and_files_contain_no_paths_of_source_files(
    tmp_path: Path, small: torchckn.CKN, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    for write in (export.to_onnx, export.to_torch):
        content = write(small, tmp_path / "model").read_bytes()  # whatever the file is called
        assert b"layers.conv.root" in content or b"layers_conv_root" in content  # the file can be searched for text
        assert b".py" not in content
    assert capfd.readouterr() == ("", "")
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("eps", [1e-1, 1e-3, 1e-6])
@pytest.mark.parametrize("patch_size", [3, (2, 3)])
def test_whitening_by_newton_iterations_equals_whitening_by_eigenvectors(
    eps: float, patch_size: int | tuple[int, int], generator: torch.Generator
) -> None:
    images = photographs(5, (3, 12, 12), generator).double()
    images[0] = 0
    images[1] *= 1e-6
    images[2, 0] = images[2, 1]  # two equal colours: a covariance of less than full rank
    layer = Whitening(3, patch_size, eps)
    expected, found = layer(images), export.modules._Whitening(layer)(images)
    assert torch.equal(found[0], torch.zeros_like(found[0]))
    assert (found - expected).abs().max() < 1e-9 / eps**0.5


def test_patches_are_those_of_unfold(generator: torch.Generator) -> None:
    x = torch.rand(2, 3, 9, 8, generator=generator)
    found = export.modules._Patches(3, (3, 2), (2, 1), (1, 0), (1, 3))(x)
    expected = nn.functional.unfold(x, (3, 2), dilation=(1, 3), padding=(1, 0), stride=(2, 1))
    assert torch.equal(found.flatten(2), expected)


class DifferentWhenExported(nn.Module):
    """Computes another function in an exported graph."""

    def forward(self, x: Tensor) -> Tensor:
        return 1.01 * x if torch.compiler.is_compiling() else x


class DataDependent(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


def convnet_with(module: nn.Module, generator: torch.Generator) -> torchckn.ScaledConvNet:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), module, nn.ReLU(), nn.Flatten(), nn.Linear(4 * 64, 3))
    return torchckn.ScaledConvNet(net, (1, 10, 10)).initialize_(0.5, generator)


@pytest.mark.parametrize("runtime", ["onnxruntime", "onnx itself", "torch"])
def test_a_program_that_differs_from_the_network_is_not_written(
    tmp_path: Path, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch, runtime: str
) -> None:
    if runtime == "onnx itself":
        monkeypatch.setitem(sys.modules, "onnxruntime", None)
    write = export.to_torch if runtime == "torch" else export.to_onnx
    if runtime == "onnx itself":  # which no other test has
        write(convnet_with(nn.Identity(), generator), tmp_path / "good")
    with pytest.raises(NumericalError, match=r"program to differ from the network by at most 1e-05 .* nothing was written"):
        write(convnet_with(DifferentWhenExported(), generator), tmp_path / "bad")
    assert not (tmp_path / "bad").exists()


def test_float32_rounding_of_large_scores_is_not_an_error(small: torchckn.CKN) -> None:
    def off(images: Tensor) -> Tensor:
        return probabilities(small, images) * (1 + 1e-4)

    with pytest.raises(NumericalError, match="differ from the network by at most .* got 1.0e-04"):
        export.files._compare("other", small, False, off)
    with torch.no_grad():
        small.head.bias.add_(10_000.0)  # probabilities stay the same, but scores keep only three decimals
    export.files._compare("other", small, False, off)


@pytest.mark.parametrize("write", [export.to_onnx, export.to_torch])
def test_a_network_with_data_dependent_control_flow_is_refused(
    tmp_path: Path, generator: torch.Generator, write: Any
) -> None:
    with pytest.raises(TranslationError, match="this network cannot be exported for .*: .*; replace the module"):
        write(convnet_with(DataDependent(), generator), tmp_path / "model")


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


@pytest.mark.parametrize("write", [export.to_onnx, export.to_torch])
def test_a_path_that_cannot_be_written_to_is_an_error(tmp_path: Path, generator: torch.Generator, write: Any) -> None:
    small = convnet_with(nn.Identity(), generator)
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
def test_options_that_cannot_be_are_refused(
    tmp_path: Path, generator: torch.Generator, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        export.to_onnx(convnet_with(nn.Identity(), generator), tmp_path / "model.onnx", **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("package", ["onnx", "onnxscript"])
def test_the_error_for_a_missing_package_says_how_to_install_it(
    tmp_path: Path, small: torchckn.CKN, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        CKNError, match=f"needs {package}, which is not installed; install it with: pip install 'torchckn\\[export\\]'"
    ):
        export.to_onnx(small, tmp_path / "model.onnx")


def test_importing_the_module_imports_no_onnx() -> None:
    code = "import sys, torchckn.export; print([name for name in sys.modules if name.startswith('onnx')])"
    assert forks.run(["-c", code], check=True).stdout == "[]\n"


def test_half_whitening_is_not_exported(tmp_path: Path) -> None:
    graph = Graph((3, 8, 8), [Whiten("whiten", root=4), Conv("conv", filters=4), AdaptiveAveragePool("pool")])
    with pytest.raises(TranslationError, match="expected whitening by the inverse square root, got root=4; use root=2"):
        export.to_onnx(torchckn.CKN(graph).eval(), tmp_path / "model.onnx")
