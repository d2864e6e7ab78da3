from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.linear_model import RidgeClassifier
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

import torchckn
from torchckn import data, sklearn
from torchckn.building import build_convnet
from torchckn.errors import ConfigError, DataError
from torchckn.settings import Settings
from torchckn.sklearn import CKNClassifier, CKNTransformer

from .training import mnist_mini

pytestmark = pytest.mark.usefixtures("_few_penalties")

SMALL: dict[str, Any] = {"filters": 6, "patches": 300, "random_state": 0}


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    return some_digits(0, 400)


def test_images_and_flat_rows_are_the_same(digits: tuple[np.ndarray, np.ndarray]) -> None:
    x, _ = digits
    images = CKNTransformer(**SMALL).fit(x).transform(x[:50])
    grey = CKNTransformer(**SMALL).fit(x[:, 0]).transform(x[:50, 0])
    rows = CKNTransformer(**SMALL, image_shape=(1, 28, 28)).fit(x.reshape(400, -1)).transform(x[:50].reshape(50, -1))
    assert images.shape == (50, 6 * 16)
    np.testing.assert_allclose(images, rows, atol=1e-5)
    np.testing.assert_allclose(images, grey, atol=1e-5)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_images_with_their_channels_last_are_the_same(digits: tuple[np.ndarray, np.ndarray], channels: int) -> None:
    x = np.repeat(digits[0][:100], channels, 1) // np.arange(1, channels + 1, dtype=np.uint8)[:, None, None]
    last = np.moveaxis(x, 1, 3)
    assert last.shape == (100, 28, 28, channels)
    first_model, last_model = (CKNTransformer(**SMALL).fit(images) for images in (x, last))
    assert last_model.ckn_.graph.input_shape == (channels, 28, 28)
    for model in (first_model, last_model):  # whichever way it was fitted
        for images in (x, last, torch.from_numpy(x), torch.from_numpy(np.ascontiguousarray(last))):
            np.testing.assert_allclose(model.transform(images), first_model.transform(x), atol=1e-6)


def test_small_images_and_an_image_shape_keep_their_channels_first(digits: tuple[np.ndarray, np.ndarray]) -> None:
    strip = digits[0][:50, 0].reshape(50, 4, 4, 49)[..., :3]  # 4 channels of 4x3 pixels
    assert CKNTransformer(**SMALL).fit(strip).ckn_.graph.input_shape == (4, 4, 3)
    maps = digits[0][:50, 0, 2:26, 2:26].reshape(50, 24, 8, 3)  # as large as color images with their channels last
    assert CKNTransformer(**SMALL).fit(maps).ckn_.graph.input_shape == (3, 24, 8)
    named = CKNTransformer(**SMALL, image_shape=(24, 8, 3)).fit(maps)
    assert named.ckn_.graph.input_shape == (24, 8, 3)


def test_a_classifier_learns_digits_and_its_probabilities_sum_to_one(digits: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = digits
    names = np.array(list("abcdefghij"))[y]
    model = CKNClassifier(**SMALL).fit(x[:300], names[:300])
    assert model.score(x[300:], names[300:]) > 0.7
    probabilities = model.predict_proba(x[300:])
    np.testing.assert_allclose(probabilities.sum(1), 1)
    assert (model.classes_[probabilities.argmax(1)] == model.predict(x[300:])).all()
    assert set(model.predict(x[300:])) <= set("abcdefghij")


def test_the_penalty_is_chosen_by_cross_validation_if_there_are_few_images(
    digits: tuple[np.ndarray, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = digits[0][:200], digits[1][:200]
    few = CKNClassifier(**SMALL).fit(x, y)
    assert few.head_fit_.folds == 5
    assert few.head_fit_.curve
    assert CKNClassifier(**SMALL, lam=0.01).fit(x, y).head_fit_.lam == 0.01
    monkeypatch.setattr(sklearn, "FEW_IMAGES", 200)
    many = CKNClassifier(**SMALL).fit(x, y)
    assert (many.head_fit_.folds, many.head_fit_.refitted) == (0, True)


def test_two_classes_have_one_score(digits: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = digits
    model = CKNClassifier(**SMALL, lam=1e-3).fit(x, y > 4)
    assert model.decision_function(x).shape == (400,)
    assert model.predict(x).dtype == bool


def test_it_works_in_a_pipeline_and_a_grid_search(digits: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = digits
    rows = x.reshape(400, -1).astype(np.float32) / 255
    pipeline = make_pipeline(CKNTransformer(**SMALL, image_shape=(1, 28, 28)), RidgeClassifier())
    search = GridSearchCV(pipeline, {"ckntransformer__sigma": [0.4, 0.8]}, cv=2, error_score="raise").fit(rows, y)
    assert search.best_score_ > 0.6
    assert clone(pipeline).get_params()["ckntransformer__filters"] == 6


def test_a_search_may_draw_integers_of_numpy(digits: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = digits[0][:60], digits[1][:60]
    search = RandomizedSearchCV(CKNClassifier(patches=50, lam=1e-3), {"filters": np.arange(2, 5, 2)}, cv=2, n_iter=2)
    assert search.fit(x, y).best_params_["filters"] in (2, 4)


def test_the_random_state_decides(digits: tuple[np.ndarray, np.ndarray]) -> None:
    x, _ = digits
    one, same, other = (CKNTransformer(**{**SMALL, "random_state": s}).fit_transform(x) for s in (1, 1, 2))
    assert np.array_equal(one, same)
    assert not np.allclose(one, other)


def test_images_that_do_not_fit_are_refused_with_a_reason(digits: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = digits
    with pytest.raises(
        DataError, match=r"image_shape=\(1, 20, 20\) expected rows of 400 numbers, got 784; pass the images' own image_shape"
    ):
        CKNTransformer(image_shape=(1, 20, 20)).fit(x.reshape(400, -1))
    with pytest.raises(
        DataError, match=r"expected images of shape \(1, 28, 28\), as in fit, got \(1, 14, 14\); crop or resize"
    ):
        CKNTransformer(**SMALL).fit(x).transform(x[:, :, ::2, ::2])
    with pytest.raises(DataError, match=r"expected images \(N, C, H, W\), \(N, H, W\) or rows with an image_shape, got \(4"):
        CKNTransformer(**SMALL).fit(x[:4, :, None])
    with pytest.raises(DataError, match="expected at least two classes, got one class only: 3"):
        CKNClassifier(**SMALL).fit(x, np.full(400, 3))
    with pytest.raises(DataError, match="y expected one label for each of 400 images, got 3"):
        CKNClassifier(**SMALL).fit(x, y[:3])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("estimator", [CKNTransformer(filters=4, patches=100), CKNClassifier(filters=4, patches=100)])
def test_scikit_learn_s_own_checks_pass(estimator: Any) -> None:
    # The test after this one has the tolerance of float32, in which features are computed; scikit-learn's is 1e-7.
    too_strict = {"check_methods_subset_invariance": "float32"}
    results = check_estimator(estimator, expected_failed_checks=too_strict, on_fail=None, on_skip=None)
    assert len(results) > 40
    assert not [result["check_name"] for result in results if result["status"] == "failed"]


def test_scores_of_an_image_do_not_depend_on_the_others(digits: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = digits
    model = CKNClassifier(**SMALL, lam=1e-3).fit(x, y)
    for method in (model.predict_proba, model.decision_function):
        together = method(x[:20])
        one_by_one = np.concatenate([method(x[i : i + 1]) for i in range(20)])
        np.testing.assert_allclose(one_by_one, together, rtol=1e-4, atol=1e-4)


def some_digits(start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    part = mnist_mini().train
    return part.images[start:stop].numpy(), part.labels[start:stop].numpy()


def test_filters_trained_with_labels_do_better_and_can_be_saved(tmp_path: Path) -> None:
    train, test = some_digits(0, 600), some_digits(600, 1000)
    options: dict[str, Any] = {"filters": 4, "patches": 300, "output_size": 2, "random_state": 0}
    plain = CKNClassifier(**options).fit(*train)
    options |= {"method": "ulr", "steps": 40, "run_dir": str(tmp_path / "run")}
    trained = CKNClassifier(**options).fit(*train)
    assert trained.score(*test) > plain.score(*test)
    assert len(trained.train_result_.history) == 41
    np.testing.assert_allclose(trained.predict_proba(test[0]).sum(1), 1, rtol=1e-6)
    again = CKNClassifier(**options).fit(*train)  # from what the folder has
    assert np.array_equal(again.predict(test[0]), trained.predict(test[0]))
    loaded = torchckn.load(torchckn.save(trained.ckn_, tmp_path / "model.ckn"))
    scores = loaded.eval()(torch.from_numpy(test[0]) / 255)
    assert np.array_equal(trained.classes_[scores.argmax(1).numpy()], trained.predict(test[0]))


def test_an_unknown_method_is_named() -> None:
    with pytest.raises(ConfigError, match=r"kernel_size expected an integer >= 1, the side of the patches, got \(3, 3\)"):
        CKNTransformer(kernel_size=(3, 3)).fit(np.zeros((4, 8, 8)) + np.arange(8))
    with pytest.raises(ConfigError, match="unknown method 'url'.*'ulr'"):
        CKNClassifier(method="url").fit(*some_digits(0, 50))  # type: ignore[arg-type]


def test_an_estimator_is_fitted_to_augmented_copies(digits: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = digits
    plain, copied = CKNClassifier(**SMALL), CKNClassifier(**SMALL, augment=("shift",), copies=2)
    assert not np.array_equal(plain.fit(x[:100], y[:100]).coef_, copied.fit(x[:100], y[:100]).coef_)
    with pytest.raises(ConfigError, match="augment changes the images of training steps"):
        CKNClassifier(**SMALL, augment=("shift",)).fit(x[:100], y[:100])
    with pytest.raises(ConfigError, match="copies are augmented images"):
        CKNClassifier(**SMALL, copies=2).fit(x[:100], y[:100])


@pytest.mark.parametrize("validation", [0, 1, 10])
def test_validation_is_a_fraction(digits: tuple[np.ndarray, np.ndarray], validation: float) -> None:
    with pytest.raises(ConfigError, match="validation expected a fraction of the images"):
        CKNClassifier(**SMALL, validation=validation).fit(*digits)


def test_a_random_state_may_be_a_seed_or_draw_one(digits: tuple[np.ndarray, np.ndarray]) -> None:
    small = {**SMALL, "random_state": np.random.RandomState(0)}
    first, again = CKNTransformer(**small).fit(digits[0][:50]), CKNTransformer(**small).fit(digits[0][:50])
    assert not torch.equal(*(model.ckn_.kernel_layers()["conv1"].weight for model in (first, again)))
    zero, none = (CKNTransformer(**SMALL | {"random_state": seed}).fit(digits[0][:50]) for seed in (0, None))
    assert torch.equal(*(model.ckn_.kernel_layers()["conv1"].weight for model in (zero, none)))


def test_options_of_layers_are_not_for_a_network_of_ones_own(digits: tuple[np.ndarray, np.ndarray]) -> None:
    with pytest.raises(ConfigError, match="filters is for estimators without net, got filters=6 with a net"):
        CKNTransformer(**SMALL, net="lenet1").fit(digits[0][:50])


def test_rows_that_look_like_color_images_are_warned_of() -> None:
    rows = np.random.default_rng(0).random((20, 3 * 8 * 8), np.float32)
    with pytest.warns(UserWarning, match=r"rows of 192 numbers are taken for signals; .* image_shape=\(3, 8, 8\)"):
        CKNTransformer(filters=2, patches=50).fit(rows)


def test_a_whitened_network_of_the_zoo_is_that_of_the_command() -> None:
    x = np.random.default_rng(0).random((12, 3, 32, 32), np.float32)
    model = CKNTransformer(patches=50, net="allcnn", whiten=True).fit(x)
    settings = Settings(network="allcnn", whiten=True)
    net = build_convnet(settings, (3, 32, 32), 10)
    pixels = data.Preprocessing.fit(torch.from_numpy(x), whiten=True)
    assert model.ckn_.graph.input_shape == (3, 32, 32)
    shapes = [tuple(layer.weight.shape) for layer in model.ckn_.kernel_layers().values()]
    other = torchckn.translate(net, (3, 32, 32), preprocessing=pixels)
    assert shapes == [tuple(layer.weight.shape) for layer in other.kernel_layers().values()]


@pytest.mark.parametrize("seed", range(3))
def test_a_class_with_one_image_is_trained_with(seed: int, digits: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = digits
    rare = np.concatenate([np.flatnonzero(y != 9), np.flatnonzero(y == 9)[:1]])
    options = SMALL | {"random_state": seed}
    model = CKNClassifier(method="ulr", steps=2, lam=2**-10, **options).fit(x[rare], y[rare])
    assert 9 in model.classes_


def test_bytes_are_refused_where_larger_numbers_were_fitted_to() -> None:
    images, labels = mnist_mini().train[:60]
    as_bytes = images.numpy()

    def fitted(to: np.ndarray) -> CKNClassifier:
        return CKNClassifier(filters=4, patches=100, random_state=0, lam=1e-4).fit(to, labels.numpy())

    with pytest.raises(DataError, match=r"expected images of numbers larger than 1, as in fit, got bytes \(uint8\)"):
        fitted(as_bytes.astype(np.float32)).predict(as_bytes)
    of_numbers, of_bytes = fitted(as_bytes / np.float32(255)), fitted(as_bytes)
    assert (of_numbers.predict(as_bytes) == of_bytes.predict(as_bytes / np.float32(255))).all()
