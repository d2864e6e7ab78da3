from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression, Ridge

import torchckn
from torchckn import data, translate, zoo
from torchckn.errors import ConfigError, DataError
from torchckn.fit import classifier, evaluate, extract_features, fit_filters, fit_head, solvers, spherical_kmeans
from torchckn.fit.activations import Activations
from torchckn.fit.classifier import fit_classifier
from torchckn.fit.filters import pick_patches, sample_patches, windows
from torchckn.graph import AveragePool, Conv, Dense, DirectSum, Graph, Local
from torchckn.kernels import RBFSphere
from torchckn.nn import KernelConv2d, KernelLinear, KernelLocal2d


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# Spherical k-means.


def clusters(n: int = 600, k: int = 6, s: int = 20, spread: float = 0.1) -> tuple[torch.Tensor, torch.Tensor]:
    g = seeded()
    centres = F.normalize(torch.randn(k, s, generator=g))
    which = torch.randint(k, (n,), generator=g)
    return centres[which] + spread * torch.randn(n, s, generator=g), centres


def test_kmeans_finds_clusters_that_are_there() -> None:
    points, centres = clusters()
    found = spherical_kmeans(points, 6, restarts=3, generator=seeded())
    cosines = found.centroids @ centres.T
    assert sorted(cosines.argmax(1).tolist()) == list(range(6))
    assert cosines.max(1).values.min() > 0.98
    torch.testing.assert_close(found.centroids.norm(dim=1), torch.ones(6))


def test_the_objective_is_the_mean_cosine_and_never_falls() -> None:
    points, _ = clusters(spread=0.5)
    objectives = [spherical_kmeans(points, 8, iterations=i, tol=0, generator=seeded()).objective for i in (1, 2, 4, 8, 32)]
    assert objectives == sorted(objectives)
    best = spherical_kmeans(points, 8, generator=seeded())
    by_hand = (F.normalize(points) @ best.centroids.T).max(1).values.mean().item()
    assert best.objective == pytest.approx(by_hand, abs=1e-6)


def test_more_restarts_are_no_worse() -> None:
    points, _ = clusters(spread=1.0)
    one, many = (spherical_kmeans(points, 10, restarts=r, generator=seeded()).objective for r in (1, 5))
    assert many >= one


def test_the_same_seed_gives_the_same_centroids_bit_for_bit() -> None:
    points, _ = clusters(spread=0.7)
    one, same, other = (spherical_kmeans(points, 7, generator=seeded(s)).centroids for s in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_chunks_bound_the_memory_and_change_nothing() -> None:
    points, _ = clusters()
    whole, parts = (spherical_kmeans(points.double(), 6, generator=seeded(), chunk=c) for c in (2**22, 60))
    torch.testing.assert_close(whole.centroids, parts.centroids)


@pytest.mark.parametrize("k", [1, 5, 40])
def test_fewer_directions_than_centroids_and_empty_clusters_are_repaired(k: int) -> None:
    points = torch.eye(4).repeat(10, 1)
    found = spherical_kmeans(points, k, generator=seeded())
    assert torch.isfinite(found.centroids).all()
    torch.testing.assert_close(found.centroids.norm(dim=1), torch.ones(k))
    if k >= 4:
        assert found.objective == pytest.approx(1)


@pytest.mark.parametrize(
    ("points", "k", "error", "message"),
    [
        (torch.ones(3), 1, DataError, r"points \(n, s\) of real numbers, got \(3,\)"),
        (torch.ones(3, 2), 4, ConfigError, "between 1 and 3 centroids"),
        (torch.zeros(3, 2), 1, DataError, "points with a direction"),
        (torch.full((3, 2), torch.nan), 1, DataError, "points with a direction"),
    ],
)
def test_points_that_will_not_do_are_refused(points: torch.Tensor, k: int, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        spherical_kmeans(points, k)


# Filters.


@pytest.mark.parametrize(
    "layer",
    [
        KernelConv2d(2, 4, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2)),
        KernelLocal2d(2, 4, 3, (7, 6), padding=1),
    ],
    ids=["convolution", "local"],
)
def test_sampled_patches_are_those_that_the_forward_pass_sees(layer: Any) -> None:
    x = torch.randn(3, 2, 7, 6, generator=seeded())
    view = windows(layer, x)
    unfolded = F.unfold(x, layer.kernel_size, layer.dilation, layer.padding, layer.stride)  # (N, s, L)
    assert torch.equal(view.flatten(3).flatten(1, 2), unfolded.transpose(1, 2))
    assert view.untyped_storage().nbytes() < 4 * x.numel() * 4  # a view: nothing is copied but the padding


def test_a_patch_comes_from_another_image_each_and_is_not_constant() -> None:
    images = torch.zeros(40, 1, 6, 6)
    images[:, :, 3:, 3:] = (1 + torch.arange(40.0))[:, None, None, None]  # most patches are constant: zero, or one value
    layer = KernelConv2d(1, 4, 3)
    picked = pick_patches(layer, images, 1, seeded())[0]
    assert ((picked.amax(1) - picked.amin(1)) > 0).all()
    assert len(set(picked.amax(1).tolist())) == len(picked)  # each image at most once
    assert len(picked) > 20


def two_layers(**options: Any) -> torchckn.CKN:
    nodes = [
        Conv("conv1", filters=6, kernel_size=3, **options),
        AveragePool("pool", kernel_size=2),
        Conv("same", filters=6, init="identity", trainable=False),
        Conv("conv2", filters=5, kernel_size=3, padding=1),
        Dense("dense", filters=7),
    ]
    return torchckn.CKN(Graph((1, 12, 12), nodes), classes=3)


IMAGES = torch.rand(120, 1, 12, 12, generator=seeded(5))


@pytest.mark.parametrize("init", ["kmeans", "sample", "random"])
def test_filters_are_fitted_layer_by_layer_on_the_sphere(init: str) -> None:
    ckn = two_layers()
    before = {name: layer.weight.detach().clone() for name, layer in ckn.kernel_layers().items()}
    assert fit_filters(ckn, IMAGES, 100, init=init, generator=seeded()) is ckn  # type: ignore[arg-type]
    for name, layer in ckn.kernel_layers().items():
        assert torch.equal(layer.weight, before[name]) == (name == "same")
        norms = layer.filter_matrix().norm(dim=-1)
        torch.testing.assert_close(norms, torch.ones_like(norms))
    assert ckn.training


def test_the_same_seed_gives_the_same_filters_bit_for_bit() -> None:
    fitted = [fit_filters(two_layers(), IMAGES, 80, generator=seeded(s)).state_dict() for s in (1, 1, 2)]
    names = [name for name in fitted[0] if name.endswith("weight") and "head" not in name and "same" not in name]
    assert all(torch.equal(fitted[0][n], fitted[1][n]) for n in names)
    assert not any(torch.equal(fitted[0][n], fitted[2][n]) for n in names)


def test_filters_are_directions_of_patches_for_init_sample() -> None:
    ckn = fit_filters(two_layers(), IMAGES, 50, init="sample", generator=seeded())
    patches = F.normalize(F.unfold(IMAGES, 3).transpose(1, 2).flatten(0, 1))
    nearest = (ckn.kernel_layers()["conv1"].filter_matrix() @ patches.T).max(1).values
    torch.testing.assert_close(nearest, torch.ones_like(nearest))


def test_fitted_filters_approximate_the_kernel_better_than_random_ones() -> None:
    ckn = torchckn.CKN(Graph((1, 12, 12), [Conv("conv1", filters=6, kernel_size=3)])).double()
    layer = ckn.kernel_layers()["conv1"]
    patches = F.unfold(IMAGES[:20].double(), 3).transpose(1, 2).flatten(0, 1)[::7]

    def error() -> float:
        images = patches.reshape(-1, 1, 3, 3)
        features = layer.eval()(images).flatten(1).detach()
        exact = layer.kernel.gram(patches)
        return float((features @ features.T - exact).norm() / exact.norm())

    before = error()
    fit_filters(ckn, IMAGES[20:], 100, generator=seeded())
    assert error() < before / 2


def test_groups_and_regions_get_filters_of_their_own() -> None:
    nodes = [Conv("grouped", filters=4, kernel_size=3, groups=2), Local("local", filters=3, kernel_size=2, regions=2)]
    ckn = torchckn.CKN(Graph((2, 8, 8), nodes))
    images = torch.rand(30, 2, 8, 8, generator=seeded())
    images[:, 1] = images[:, 1].sort(2).values  # the second channel looks different
    fit_filters(ckn, images, 30, generator=seeded())
    grouped = ckn.kernel_layers()["grouped"].filter_matrix()
    assert grouped.shape == (2, 2, 9)
    sample = sample_patches(ckn, "grouped", images, 20, generator=seeded())
    assert sample.shape == (2, 20, 9)
    assert (sample[1].unflatten(1, (3, 3)).diff(dim=2) >= 0).all()
    assert ckn.kernel_layers()["local"].filter_matrix().shape == (4, 3, 16)


def test_data_are_streamed_and_enough_is_enough() -> None:
    seen: list[int] = []

    class Counting(torch.utils.data.Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 120

        def __getitem__(self, i: int) -> torch.Tensor:
            seen.append(i)
            return IMAGES[i]

    ckn = torchckn.CKN(Graph((1, 12, 12), [Conv("conv", filters=4, kernel_size=3)]))
    fit_filters(ckn, Counting(), 30, batch_size=10, generator=seeded())
    assert len(seen) <= 40
    assert len(set(seen)) == len(seen)


def branches() -> torchckn.CKN:
    """A sum of the input of a layer and of what two layers make of it, so that a value is needed by several later nodes."""
    nodes = [
        Conv("conv1", filters=6, kernel_size=3, padding=1),
        Conv("conv2", filters=5, kernel_size=3, padding=1),
        Conv("conv3", filters=4, kernel_size=1),
        DirectSum("sum", inputs=("conv1", "conv3")),
        AveragePool("pool", kernel_size=2),
        Conv("conv4", filters=5, kernel_size=3),
        Dense("dense", filters=7),
    ]
    return torchckn.CKN(Graph((1, 12, 12), nodes), classes=3)


#: bytes of the activations of some of the batches that patches are sampled from
SOME = 2 * 16 * 11 * 12 * 12 * 4


@pytest.mark.parametrize("memory", [0, SOME])
@pytest.mark.parametrize("network", [two_layers, branches])
def test_filters_do_not_depend_on_the_memory_for_activations(network: Any, memory: int) -> None:
    enough, little = (
        fit_filters(network(), IMAGES, 100, batch_size=16, generator=seeded(), **options).kernel_layers()
        for options in ({}, {"memory": memory})
    )
    for name, layer in enough.items():
        assert torch.equal(layer.weight, little[name].weight)


def test_every_layer_sees_a_sampled_image_once() -> None:
    ckn = branches()
    seen = dict.fromkeys(ckn.kernel_layers(), 0)
    for name, layer in ckn.kernel_layers().items():
        layer.register_forward_pre_hook(lambda _, x, name=name: seen.update({name: seen[name] + len(x[0])}))
    fit_filters(ckn, IMAGES, 96, batch_size=16, generator=seeded())
    assert seen == {"conv1": 96, "conv2": 96, "conv3": 96, "conv4": 96, "dense": 0}
    fit_filters(ckn, IMAGES, 96, batch_size=16, memory=0, generator=seeded())
    assert seen["conv1"] == 96 + 4 * 96


@pytest.mark.parametrize("memory", [0, SOME])
def test_activations_stay_within_their_memory_and_are_those_of_the_network(memory: int) -> None:
    ckn = branches().eval()
    activations = Activations(ckn, IMAGES, 16, seeded(), memory)
    sizes = []
    for name in ckn.kernel_layers():
        inputs = []
        for (x,) in activations.inputs_of(name):
            sizes.append(sum(batch.bytes for batch in activations._kept))
            inputs.append(x)
        order = torch.cat(list(activations._images(0)))
        torch.testing.assert_close(torch.cat(inputs), ckn.inputs_of(name, order)[0])
    assert max(sizes) <= memory
    assert (max(sizes) > 0) == (memory > 0)


def test_patches_of_every_layer_come_from_different_images() -> None:
    marks = (1 + torch.arange(120.0)) / 120
    images = torch.rand(120, 1, 12, 12, generator=seeded()).clamp(min=0.1) * marks[:, None, None, None]
    ckn = torchckn.CKN(Graph((1, 12, 12), [Conv("a", filters=1, kernel_size=1), Conv("b", filters=2, kernel_size=2)]))
    images[:, :, ::2] = marks[:, None, None, None]  # every patch of the second layer has its image's mark in it
    layer = ckn.eval().kernel_layers()["a"]
    sample = sample_patches(ckn, "b", images, 120, generator=seeded())[0]
    largest = sample.amax(1) / layer(torch.ones(1, 1, 1, 1)).item() * 120
    assert sorted(largest.round().int().tolist()) == list(range(1, 121))


def test_fewer_images_than_patches_give_several_patches_each() -> None:
    ckn = torchckn.CKN(Graph((1, 12, 12), [Conv("conv", filters=4, kernel_size=3)]))
    assert sample_patches(ckn, "conv", IMAGES[:5], 40, generator=seeded()).shape == (1, 40, 9)


def test_bytes_are_taken_as_pixels_between_0_and_1() -> None:
    as_bytes = (IMAGES * 255).round().to(torch.uint8)
    fitted = [
        fit_filters(two_layers(), images, 60, generator=seeded()).kernel_layers()["conv1"].weight
        for images in (as_bytes, as_bytes.float() / 255)
    ]
    assert torch.equal(fitted[0], fitted[1])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: fit_filters(two_layers(), IMAGES, init="kmean"), ConfigError, "unknown init 'kmean'"),  # type: ignore[arg-type]
        (lambda: fit_filters(two_layers(), IMAGES, 0), ConfigError, "patches expected an integer"),
        (lambda: fit_filters(two_layers(), IMAGES[:0]), DataError, "there are no images to sample patches from"),
        (
            lambda: fit_filters(two_layers(), torch.ones(9, 1, 12, 12)),
            DataError,
            "layer .conv1. sees are constant",
        ),
        (lambda: fit_filters(two_layers(), torch.ones(9, 3, 12, 12)), DataError, r"images \(N, 1, 12, 12\), got"),
        (lambda: two_layers().inputs_of("conv3", IMAGES), ConfigError, "unknown layer 'conv3'"),
    ],
)
def test_what_cannot_be_fitted_is_refused_with_a_reason(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


# The head.


def features(n: int = 400, d: int = 12, classes: int = 4, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Strongly correlated features, as those of a network are."""
    g = seeded(seed)
    mix = torch.randn(d, d, generator=seeded(99)) @ torch.diag(10.0 ** -torch.linspace(0, 2, d))
    x = torch.randn(n, d, generator=g) @ mix.T + 1
    y = (x @ torch.randn(d, classes, generator=seeded(98)) * 3 + torch.randn(n, classes, generator=g)).argmax(1)
    return x, y


def multinomial_objective(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor, b: torch.Tensor, lam: float) -> float:
    return float(F.cross_entropy(x.double() @ w.double() + b.double(), y) + lam * w.double().square().sum())


@pytest.mark.parametrize("lam", [1e-1, 1e-3, 1e-6])
@pytest.mark.parametrize("most", [0, solvers.Multinomial._MOST])  # preconditioned by a covariance, by the Hessian
def test_the_multinomial_head_is_the_minimiser_that_scikit_learn_finds(
    lam: float, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(solvers.Multinomial, "_MOST", most)
    x, y = features()
    weight, bias, _ = fit_classifier(x, y, 4, lam=lam)
    # scikit-learn's objective is C sum_i loss_i + |w|^2 / 2
    other = LogisticRegression(C=1 / (2 * lam * len(x)), max_iter=20_000, tol=1e-10).fit(x.double().numpy(), y.numpy())
    theirs = multinomial_objective(x, y, torch.from_numpy(other.coef_.T), torch.from_numpy(other.intercept_), lam)
    assert multinomial_objective(x, y, weight, bias, lam) <= theirs * (1 + 1e-3)


@pytest.mark.parametrize(("label", "classes"), [(0, 1), (2, 3)])
def test_data_of_one_class_are_fitted_in_a_few_iterations(label: int, classes: int) -> None:
    x, y = features(100)[0], torch.full((100,), label)
    weight, bias, fit = fit_classifier(x, y, classes, x, y, lambdas=[1.0, 2**-20, 0.0], search="exhaustive")
    assert [score.accuracy for score in fit.curve] == [1, 1, 1]
    assert max(score.evaluations for score in fit.curve) < 150  # of 1,000 that are allowed
    assert bool(torch.isfinite(weight).all() and torch.isfinite(bias).all())


@pytest.mark.parametrize("lam", [1e-1, 1e-4])
def test_the_square_head_is_ridge_regression(lam: float) -> None:
    x, y = features()
    weight, bias, _ = fit_classifier(x.double(), y, 4, loss="square", lam=lam)
    targets = F.one_hot(y, 4).double().numpy()
    ridge = Ridge(alpha=lam * len(x)).fit(x.double().numpy(), targets)
    np.testing.assert_allclose(weight.T, ridge.coef_, atol=1e-8)
    np.testing.assert_allclose(bias, ridge.intercept_, atol=1e-8)


@pytest.mark.parametrize("loss", ["multinomial", "square"])
def test_lambda_is_chosen_on_validation_data_along_a_path(loss: Any) -> None:
    x, y = features(200)
    vx, vy = features(200, seed=1)
    grid = [2.0**-i for i in range(16)]
    path = fit_classifier(x, y, 4, vx, vy, loss=loss, lambdas=grid)[2]
    full = fit_classifier(x, y, 4, vx, vy, loss=loss, lambdas=grid, search="exhaustive")[2]
    assert len(full.curve) == 16
    assert len(path.curve) <= len(full.curve)
    assert full.accuracy == max(score.accuracy for score in full.curve)
    assert path.accuracy is not None
    assert path.accuracy >= full.accuracy - 0.02
    assert [score.lam for score in path.curve] == sorted((score.lam for score in path.curve), reverse=True)
    assert path.to_json()["lam"] == path.lam


@pytest.mark.parametrize(
    ("search", "few", "many"), [("path", 2**19, 2**24), ("path", 0, 2**24), ("path", 0, 0), ("exhaustive", 2**19, 2**24)]
)
def test_the_accuracy_that_chose_the_penalty_is_that_of_the_classifier_that_is_kept(
    monkeypatch: pytest.MonkeyPatch, search: Any, few: int, many: int
) -> None:
    monkeypatch.setattr(classifier, "_FEW", few, raising=False)  # 0: as if there were more than a few features
    monkeypatch.setattr(classifier, "_MANY", many, raising=False)
    for seed in range(0, 8, 2):
        x, y = features(80, 40, seed=seed)
        vx, vy = features(30, 40, seed=seed + 1)
        weight, bias, fit = fit_classifier(x, y, 4, vx, vy, search=search, lambdas=[2.0**-i for i in range(0, 24, 3)])
        (chosen,) = (score for score in fit.curve if score.lam == fit.lam)
        kept = float(((vx @ weight + bias).argmax(1) == vy).double().mean())
        assert fit.accuracy == chosen.accuracy == kept
        if many:
            assert kept == max(score.accuracy for score in fit.curve)


@pytest.mark.parametrize(
    ("loss", "search"), [("multinomial", "path"), ("multinomial", "exhaustive"), ("square", "exhaustive")]
)
def test_penalties_of_equal_accuracy_are_ranked_by_their_validation_loss(loss: Any, search: Any) -> None:
    x, y = features(200, seed=2)
    vx, vy = features(8, seed=3)  # so few that many penalties are equally accurate
    lambdas = [2.0**-i for i in range(20)]
    weight, bias, fit = fit_classifier(x, y, 4, vx, vy, loss=loss, search=search, lambdas=lambdas)
    equals = [score for score in fit.curve if score.accuracy == fit.accuracy]
    assert len(equals) > 2
    assert fit.lam == min(equals, key=lambda score: score.loss).lam
    assert fit.lam < max(score.lam for score in equals), "the largest of them would do without a look at the loss"
    scores = vx @ weight + bias
    of_images = F.cross_entropy(scores, vy) if loss == "multinomial" else (scores - F.one_hot(vy, 4)).square().sum(1).mean()
    assert min(score.loss for score in equals) == pytest.approx(float(of_images), rel=1e-6)


def test_a_fitted_head_has_the_accuracy_that_is_reported_even_on_few_images(digits: data.DataSet) -> None:
    train, valid = digits.train[:300], digits.train[300:320]
    ckn = translate(zoo.build("lenet1", filters=6), (1, 28, 28), RBFSphere(0.6), generator=seeded())
    fit = fit_head(ckn, train, valid, folds=0)
    assert evaluate(ckn, valid).accuracy == fit.accuracy == max(score.accuracy for score in fit.curve)


def test_a_head_without_a_bias_is_refused() -> None:
    ckn = two_layers()
    ckn.head = torch.nn.Linear(ckn.head.in_features, 3, bias=False)
    with pytest.raises(ConfigError, match="expected a head with a bias, got one without; build the head with bias=True"):
        fit_head(ckn, (IMAGES, LABELS), lam=1.0)


def test_features_that_are_not_finite_are_refused() -> None:
    x, y = features(50)
    x[3, 4] = torch.inf
    with pytest.raises(DataError, match="the features are not finite, .*; check images and filters for NaN"):
        fit_classifier(x, y, 4, lam=1e-3)


def test_preconditioning_saves_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = features(2000, 60)
    valid = features(100, 60, seed=1)

    def score() -> classifier.LambdaScore:
        return fit_classifier(x, y, 4, *valid, lambdas=[2.0**-12])[2].curve[0]

    by_hessian = score()
    monkeypatch.setattr(solvers.Multinomial, "_MOST", 0)
    by_covariance = score()
    monkeypatch.setattr(solvers, "_factor", lambda matrix: torch.eye(len(matrix), dtype=torch.float64))
    plain = score()
    assert by_hessian.evaluations < 0.7 * by_covariance.evaluations < 0.7 * 0.7 * plain.evaluations
    assert max(by_hessian.objective, by_covariance.objective) <= plain.objective * 1.001


def test_the_preconditioner_of_few_features_is_the_hessian_and_holds_what_the_loss_leaves_free() -> None:
    x = torch.cat([torch.randn(5000, 4, generator=seeded()).double(), torch.ones(5000, 1).double()], 1)
    y = torch.randint(3, (5000,), generator=seeded())
    v = torch.randn(5, 3, generator=seeded()).double()

    def objective(flat: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(x @ flat.view(5, 3), y) + 0.1 * flat.view(5, 3)[:-1].square().sum()

    coordinates = solvers._OfAll(x, torch.softmax(x @ v, 1), 0.1)
    hessian = torch.autograd.functional.hessian(objective, v.flatten())
    hessian[-3:, -3:] += 1 / 3  # the same bias for all classes, which changes no probability
    torch.testing.assert_close(coordinates.factor @ coordinates.factor.T, hessian, atol=1e-6, rtol=0)
    torch.testing.assert_close(coordinates.decode(coordinates.encode(v)), v)
    gradient = torch.autograd.functional.jacobian(objective, v.flatten())
    in_u = torch.autograd.functional.jacobian(lambda u: objective(coordinates.decode(u).flatten()), coordinates.encode(v))
    torch.testing.assert_close(coordinates.gradient(gradient.view(5, 3)), in_u)


def test_rounding_errors_do_not_decide_the_biases() -> None:
    x, y = (part.double() if part.is_floating_point() else part for part in features(200))
    order = torch.randperm(200, generator=seeded())
    (weight, bias, _), (other_weight, other_bias, _) = (
        fit_classifier(some, labels, 4, lam=2**-9) for some, labels in ((x, y), (x[order], y[order]))
    )
    torch.testing.assert_close(other_weight, weight, atol=1e-12, rtol=0)
    torch.testing.assert_close(other_bias, bias, atol=1e-12, rtol=0)


def test_refitting_uses_validation_images_too() -> None:
    x, y = features(60)
    vx, vy = features(300, seed=1)
    plain = fit_classifier(x, y, 4, vx, vy, lambdas=[1e-3])
    refit = fit_classifier(x, y, 4, vx, vy, lambdas=[1e-3], refit=True)
    both = fit_classifier(torch.cat([x, vx]), torch.cat([y, vy]), 4, lam=1e-3)
    assert refit[2].refitted
    assert refit[2].accuracy == plain[2].accuracy  # reported from before the refit: the images are training images now
    everything = torch.cat([x, vx]), torch.cat([y, vy])
    objectives = [multinomial_objective(*everything, w, b, 1e-3) for w, b, _ in (refit, both, plain)]
    assert objectives[0] == pytest.approx(objectives[1], rel=1e-3)
    assert objectives[0] < objectives[2]


def test_a_whole_network_is_trained_without_labels_for_its_filters(digits: data.DataSet) -> None:
    assert digits.test is not None
    train, valid = data.split(digits.train[:2500], 500)
    pixels = data.Preprocessing.fit(train.images)
    net = zoo.build("lenet1", filters=12)
    ckn = translate(net, (1, 28, 28), RBFSphere(0.6), preprocessing=pixels, generator=seeded())
    fit_filters(ckn, train, 1000, generator=seeded())
    found = fit_head(ckn, train, valid)
    result = evaluate(ckn, digits.test)
    assert result.accuracy > 0.9
    assert result.images == 1500
    assert math.isfinite(result.loss)
    assert ckn.training  # left as it was
    scores = ckn.eval()(digits.test.images[:200].float() / 255)  # the same through the network itself
    assert torch.equal(scores.argmax(1), result.predictions[:200])
    assert found.accuracy == pytest.approx(evaluate(ckn, valid).accuracy)


def test_features_are_those_of_the_network_in_any_batches() -> None:
    ckn = two_layers().eval()
    got, labels = extract_features(ckn, (IMAGES, torch.zeros(120, dtype=torch.long)), batch_size=7)
    torch.testing.assert_close(got, ckn.features(IMAGES))
    assert labels is not None
    assert extract_features(ckn, IMAGES)[1] is None


LABELS = torch.arange(120) % 3


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda c: fit_head(c, (IMAGES, LABELS), folds=0),
            ConfigError,
            "chooses the L2 penalty on validation data: pass valid_data, the penalty itself as lam=..., or folds=5",
        ),
        (lambda c: fit_head(c, IMAGES, lam=1.0), DataError, "fit_head needs labels in train_data"),
        (lambda c: fit_head(c, (IMAGES, LABELS + 1), lam=1.0), DataError, "labels must be from 0 to 2 .* got 1 to 3"),
        (lambda c: fit_head(c, (IMAGES, LABELS.float()), lam=1.0), DataError, "labels must be integers"),
        (lambda c: fit_head(c, (IMAGES, LABELS), lam=1.0, loss="hinge"), ConfigError, "unknown loss 'hinge'"),
        (lambda c: fit_head(c, (IMAGES, LABELS), lam=1.0, search="grid"), ConfigError, "unknown search 'grid'"),
        (lambda c: fit_head(c, (IMAGES, LABELS), (IMAGES, LABELS), lambdas=[]), ConfigError, "lambdas expected numbers"),
        (lambda c: evaluate(c, IMAGES), DataError, "evaluate needs labels"),
        (lambda c: evaluate(c, (IMAGES[:0], LABELS[:0])), DataError, "there are no images"),
    ],
)
def test_heads_that_cannot_be_fitted_are_refused_with_a_reason(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(two_layers())


def test_a_fully_connected_layer_sees_whole_images() -> None:
    layer = KernelLinear(144, 3)
    assert pick_patches(layer, IMAGES[:5], 1, seeded()).shape == (1, 5, 144)


def test_features_that_depend_on_each_other_do_not_stop_the_solver() -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(400, 1, generator=g) * torch.ones(40) + 1e-5 * torch.randn(400, 40, generator=g)
    x = x - x.mean(1, keepdim=True)
    found = fit_classifier(x, torch.arange(400) % 4, 4, x[:50], torch.arange(50) % 4)[2]
    assert all(score.objective <= 1.387 for score in found.curve)  # log 4, the objective of an empty classifier
