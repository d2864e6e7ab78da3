"""Training configuration: declared once, found everywhere, and what it says about mistakes."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
import tomli_w
import torch

import torchckn
from torchckn import ConfigError, TrainConfig, cli, data, runs, settings
from torchckn.choices import DataSetName
from torchckn.fit.defaults import PRESETS
from torchckn.fit.schedules import Search

from . import forks
from .training import digits, network, trained


def test_the_defaults_depend_on_the_method_and_on_the_images() -> None:
    ulr = TrainConfig().resolved("ulr", 10_000)
    assert (ulr.method, ulr.lr, ulr.momentum, ulr.batch_size, ulr.steps) == ("ulr", "cosine:0.015625", 0.9, 256, 500)
    sgo = TrainConfig(method="sgo", momentum=0.5).resolved("ulr", 100)
    assert (sgo.method, sgo.lr, sgo.momentum, sgo.batch_size) == ("sgo", "search", 0.5, 100)
    assert ulr.resolved("sgd", 10_000) == ulr


def test_epochs_are_steps_over_all_images() -> None:
    assert TrainConfig(epochs=3, batch_size=64).resolved("ulr", 300).steps == 12
    assert trained(steps=None, epochs=1)[1].steps == 4
    with pytest.raises(torchckn.ConfigError, match="give steps or epochs, not both; got steps=3 and epochs=1"):
        TrainConfig(steps=3, epochs=1).resolved("ulr", 300)
    with pytest.raises(torchckn.ConfigError, match="epochs needs training data whose number of images is known"):
        TrainConfig(epochs=1).resolved("ulr", None)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"step": 3}, "unknown option 'step'. Did you mean 'steps'?"),
        ({"nonsense": 3}, "unknown option 'nonsense'. Known: lam, loss"),
        ({"steps": -1}, "steps: expected a number greater than or equal to 0, got -1"),
        (
            {"steps": 2.5},
            "steps: expected an integer, got 2.5",
        ),
        ({"tau": math.nan}, "tau: expected a finite number, got nan"),
        ({"tau": math.inf}, "tau: expected a finite number, got inf"),
        ({"momentum": 1}, "momentum: expected a number less than 1, got 1"),
        ({"seed": 2**64}, "seed: expected a number less than 9223372036854775808, got 18446744073709551616"),
        ({"seed": -1}, "seed: expected a number greater than or equal to 0, got -1"),
        ({"method": "url"}, "method: expected 'ulr', 'sgo', 'sgo-ball' or 'sgd', got 'url'. Did you mean 'ulr'?"),
        ({"chunk": 0}, "chunk: expected at least one image and at most 1000000000, 'auto' or 'all', got 0"),
        ({"chunk": "some"}, "chunk: expected an integer or 'auto' or 'all', got 'some'"),
        ({"lr": 0}, "lr: expected a positive number, got 0"),
        ({"lr": True}, "lr: expected a positive number, a list of them, a name such as 'search', or a function"),
        ({"lr": "cosine:x"}, "lr: expected a positive number after cosine:, such as cosine:0.03, got 'cosine:x'"),
        ({"lambdas": []}, "lambdas: expected"),
        ({"lambdas": [-1.0]}, "lambdas: expected numbers >= 0, got"),
        ({"rollback": "maybe"}, "rollback: expected true or false, got 'maybe'|rollback: expected true or false"),
    ],
)
def test_a_mistake_is_explained_in_a_sentence(values: dict[str, object], message: str) -> None:
    with pytest.raises(torchckn.ConfigError, match=message):
        TrainConfig(**values)


def test_a_configuration_is_frozen_and_its_copies_are_validated() -> None:
    config = TrainConfig(steps=3)
    with pytest.raises(Exception, match="frozen"):
        config.steps = 4  # type: ignore[misc]
    assert config.replace(lr=0.1).steps == 3
    with pytest.raises(torchckn.ConfigError, match="steps: expected"):
        config.replace(steps="many")


def test_a_configuration_and_overrides_are_one_configuration() -> None:
    train_data, valid_data = digits()
    config = TrainConfig(steps=9, lr=2**-4, batch_size=64, lambdas=[2**-6], patches=300)
    result = torchckn.train(network(), train_data, valid_data, config, steps=2)
    assert result.steps == 2
    with pytest.raises(torchckn.ConfigError, match="config: expected a torchckn.TrainConfig, got dict"):
        torchckn.train(network(), train_data, valid_data, {"steps": 2})  # type: ignore[arg-type]


def test_any_function_of_the_step_is_a_learning_rate(tmp_path: Path) -> None:
    def warm_up(step: int) -> float:
        return 2**-5 * min(1, step / 2)

    _, result = trained(lr=warm_up, steps=4, run_dir=tmp_path / "run")
    assert [record["lr"] for record in result.history[1:]] == [0, 2**-6, 2**-5, 2**-5]
    assert runs.read_config(tmp_path / "run")["training"]["lr"].endswith("warm_up")
    with pytest.raises(torchckn.ConfigError, match="lr: expected a function that gives numbers >= 0, got -1.0 for step 0"):
        trained(lr=lambda step: -1, steps=1)


def test_a_schedule_is_saved_by_a_text_that_is_always_the_same(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        trained(lr=Search(first=(2**-5,), tries=1), steps=1, run_dir=tmp_path / folder)
    texts = {runs.read_config(tmp_path / folder)["training"]["lr"] for folder in ("one", "two")}
    assert texts == {repr(Search(first=(2**-5,), tries=1))}


def test_a_seed_is_a_generator_of_that_seed() -> None:
    train_data, valid_data = digits()
    options = {"steps": 2, "lr": 2**-4, "batch_size": 64, "lambdas": [2**-6], "patches": 300}
    by_seed, by_generator = network(), network()
    torchckn.train(by_seed, train_data, valid_data, seed=4, **options)
    trained(by_generator, seed=4, **options)
    states = by_seed.state_dict(), by_generator.state_dict()
    assert all((states[0][name] == states[1][name]).all() for name in states[0])
    with pytest.raises(torchckn.ConfigError, match="give seed or generator, not both"):
        torchckn.train(by_seed, train_data, valid_data, seed=4, generator=torch.Generator().manual_seed(5), **options)


def test_adding_an_option_touches_one_place(tmp_path: Path, few_digits: Path) -> None:
    """A copy of the package with one more field in TrainConfig has it in --help, in a TOML file, and in a run's folder."""
    source = Path(torchckn.__file__).parent
    shutil.copytree(source, tmp_path / "torchckn", ignore=shutil.ignore_patterns("__pycache__"))
    file = tmp_path / "torchckn" / "fit" / "config.py"
    text = file.read_text()
    field = "rollback: bool = option("
    assert text.count(field) == 1
    file.write_text(
        text.replace(field, f'spice: float = option(0.25, "How hot it is.", heading=TRAINING, ge=0)\n    {field}')
    )
    toml = tmp_path / "own.toml"
    own = {"network": "lenet1", "data": str(few_digits), "filters": 2, "steps": 0, "patches": 50, "lam": 0.01, "spice": 0.5}
    toml.write_text(tomli_w.dumps(own))

    def command(*arguments: object) -> subprocess.CompletedProcess[str]:
        """The copy's command, in a process that has imported torch, and forgets the package itself."""
        forget = "import sys; [sys.modules.pop(name) for name in list(sys.modules) if name.partition('.')[0] == 'torchckn']"
        code = f"{forget}; sys.path.insert(0, {str(tmp_path)!r}); from torchckn.cli import main; main()"
        return forks.run(["-c", code, *arguments], cwd=tmp_path, env=os.environ | {"COLUMNS": "120"})

    shown = command("train", "--help").stdout
    assert "--spice" in shown
    assert "How hot it is. [default: 0.25]" in shown
    done = command("train", "--config", toml, "--validation", 200, "--run", "run", "--spice", "0.75")
    assert done.returncode == 0, done.stderr
    assert runs.read_config(tmp_path / "run")["training"]["spice"] == 0.75
    refused = command("train", "--config", toml, "--spice", "-1")
    assert (refused.returncode, "spice: expected a number greater than or equal to 0, got -1.0" in refused.stderr) == (
        2,
        True,
    )


def test_every_option_has_a_description_and_a_heading() -> None:
    for name, field in settings.Settings.all_options().items():
        assert field.description, name
        assert field.description.endswith("."), name


def test_the_names_of_data_sets_are_those_that_can_be_loaded() -> None:
    assert sorted(get_args(DataSetName)) == data.names()


def test_types_in_help_are_plain_and_flags_have_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in ([], ["train"], ["translate"], ["predict"], ["data", "list"], ["runs", "list"], ["runs", "compare"]):
        monkeypatch.setattr(sys, "argv", ["torchckn", *arguments, "--help"])
        with pytest.raises(SystemExit):
            cli.main()
        text = capsys.readouterr().out
        assert "<bool>" not in text
        assert "list[" not in text


@pytest.mark.parametrize("name", ["fast", "accurate"])
def test_a_preset_is_a_configuration_that_other_options_take_precedence_over(name: Any) -> None:
    config = TrainConfig.preset(name)
    assert all(getattr(config, key) == value for key, value in PRESETS[name].items())
    assert TrainConfig.preset(name, steps=7) == config.replace(steps=7)
    assert TrainConfig.preset(name, epochs=2) == config.replace(steps=None, epochs=2)


def test_an_unknown_preset_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown preset 'fats'.*Did you mean 'fast'"):
        TrainConfig.preset("fats")  # type: ignore[arg-type]
