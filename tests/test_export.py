"""Exported networks give the probabilities of the network."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

import torchckn
from torchckn import export, kernels, zoo
from torchckn.data import Preprocessing
from torchckn.errors import DataError
from torchckn.graph import AdaptiveAveragePool, Conv, Dense, DirectSum, GaussianPool, Graph, MaxPool, Node, Whiten
from torchckn.nn.whitening import Whitening
from torchckn.zoo import ConvNet

from .collection_networks import COLLECTIONS
from .exporting import assert_depends_on_the_image, difference, fitted, photographs, probabilities, run_onnx
from .public_networks import PUBLIC
from .test_graph import every_operation

RBF = kernels.RBFSphere(0.6)


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


def test_a_float64_network_stays_float64_in_torch_and_becomes_float32_in_onnx(
    tmp_path: Path, small_network: torchckn.CKN, generator: torch.Generator
) -> None:
    ckn, images = small_network.double(), photographs(4, (1, 10, 10), generator).double()
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


def test_the_plain_network_is_a_copy_that_is_not_trained(small_network: torchckn.CKN) -> None:
    small_network.train()
    x = torch.rand(4, 1, 10, 10)
    plain = export.plain(small_network)
    before = plain(x)
    assert torch.allclose(before.sum(1), torch.ones(4))
    with torch.no_grad():
        small_network.layers["conv"].weight.copy_(small_network.layers["conv"].weight.flip(0))
        small_network.layers["dense"].kernel = RBF
        small_network.head.weight.zero_()
    assert torch.equal(plain(x), before)
    assert not plain.training
    assert small_network.training
    assert not any(parameter.requires_grad for parameter in plain.parameters())


def test_uint8_images_give_the_probabilities_of_their_float_pixels(tmp_path: Path, small_network: torchckn.CKN) -> None:
    images = torch.randint(256, (4, 1, 10, 10), dtype=torch.uint8)
    expected = probabilities(small_network, images / 255)
    assert_depends_on_the_image(expected)
    assert difference(export.plain(small_network, uint8_input=True)(images), expected) < 1e-6
    assert difference(run_onnx(export.to_onnx(small_network, tmp_path / "model", uint8_input=True), images), expected) < 1e-5
    path = export.to_torch(small_network, tmp_path / "program", uint8_input=True)
    assert difference(torch.export.load(path).module()(images), expected) < 1e-6


def test_images_of_the_wrong_dtype_are_refused(small_network: torchckn.CKN) -> None:
    with pytest.raises(DataError, match="expected uint8 images from 0 to 255, got torch.float32; see uint8_input"):
        export.plain(small_network, uint8_input=True)(torch.rand(1, 1, 10, 10))
    with pytest.raises(DataError, match="expected floating-point images from 0 to 1, got torch.uint8"):
        export.plain(small_network)(torch.zeros(1, 1, 10, 10, dtype=torch.uint8))


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
