"""The page: one template, filled in with all that the run folders have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from .. import __version__
from ..correspondence.page import STYLE as TABLE_STYLE
from ..correspondence.page import to_html
from ..errors import CKNError, ConfigError
from ..files import write_atomically
from ..fit.conditioning import layer_facts
from ..formats import number, percent
from .charts import penalty_chart, training_charts
from .confusion import Confusion, Sample, confusion, take_sample
from .folder import PathLike, RunFolder, read_runs
from .pictures import data_uri, filter_frames
from .policy import content_policy

METHODS = {
    "ulr": "ultimate layer reversal",
    "sgo": "gradient steps on filters and classifier",
    "sgo-ball": "gradient steps, classifier in a ball",
    "sgd": "SGD with momentum",
}
#: levels of nested settings, and characters of one, that are shown
DEEPEST, LONGEST = 6, 500


def write(runs: PathLike | Sequence[PathLike], output: PathLike, *, data: Any = None) -> Path:
    """Write one HTML file about one or more run folders. It needs no server and no internet connection.

    Args:
        runs: folders that :func:`torchckn.train` wrote (``run_dir``), of kernel networks and ConvNets. The page says what is
            missing in them, for instance because a run is not finished.
        output: the file to write, such as ``report.html``.
        data: images for the confusion matrix and the error of each layer's approximation: a triple (images, labels, names of
            the classes), a pair without names, a :class:`torchckn.data.Part`, or a :class:`torchckn.data.DataSet`, whose test
            part is used.

    Returns:
        the path of the file
    """
    output = Path(output)
    if output.is_dir():
        raise ConfigError(f"output expected the name of a file, such as {output / 'report.html'}, got the folder {output}")
    read = read_runs(runs)
    # Names of folders and texts in JSON may have characters that UTF-8 does not have.
    write_atomically(output, render(read, take_sample(data)).encode(errors="replace"))
    return output


def render(runs: Sequence[RunFolder], sample: Sample | None) -> str:
    """The page as text."""
    environment = Environment(
        loader=PackageLoader(__package__ or "", "template"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": percent, "accuracy": accuracy, "short": short}
    charts = [*training_charts(runs), penalty_chart(runs)]
    parts = [_run(run, sample) for run in runs]
    script, style = _own("page.js"), _own("page.css")
    return environment.get_template("page.html").render(
        version=__version__,
        policy=content_policy([script], [style, TABLE_STYLE]),
        script=script,
        style=style,
        runs=parts,
        sample=sample,
        training=charts[:2],
        penalty=charts[2],
        configuration=_comparison([flat(run.config) for run in runs]),
        environment=_comparison([flat(run.environment) for run in runs]),
        data={
            "charts": {chart.name: asdict(chart) for chart in charts},
            "filters": [part["frames"] for part in parts],
        },
    )


@cache
def _own(file: str) -> Markup:
    """A file of this package that becomes part of the page as it is. Data never does: the template escapes it."""
    text = resources.files(__package__).joinpath("template", file).read_text(encoding="utf-8")
    return Markup(f"\n{text}")


def _run(run: RunFolder, sample: Sample | None) -> dict[str, Any]:
    """The values of one run that the template shows."""
    report = run.ckn.report if run.ckn else None
    predictions, wrong = _attempt(lambda net: confusion(net, sample) if sample else None, run.model)
    # If the images do not suit this network, the errors of its layers are left out, but not their conditioning.
    images = sample.images if sample and not wrong else None
    layers, unfit = _attempt(lambda ckn: layer_facts(ckn, images), run.ckn)
    return {
        "run": run,
        "method": METHODS.get(run.method, run.method),
        "test": _test_accuracy(run, sample, predictions),
        "table": to_html(report.network, report.rows) if report else None,
        "drawing": data_uri("image/svg+xml", report.to_svg().encode()) if report else None,
        "network": report.network if report else None,
        "frames": filter_frames(run.filters),
        "confusion": predictions,
        "layers": layers,
        "errors": any(layer.error is not None for layer in layers or ()),
        "trouble": wrong or unfit,
    }


def _test_accuracy(run: RunFolder, sample: Sample | None, predictions: Confusion | None) -> str | None:
    """As it was measured, or as the confusion matrix has it."""
    if run.test_accuracy is not None:
        return percent(run.test_accuracy)
    if sample is None or predictions is None or not sample.is_test_of(run.data):
        return None
    return percent(predictions.accuracy) + ("" if sample.is_all else f" ({predictions.images} images)")


N = TypeVar("N")
T = TypeVar("T")


def _attempt(compute: Callable[[N], T], net: N | None) -> tuple[T | None, str | None]:
    """A result, or why there is none: images of one data set may not suit a network that was trained on another."""
    if net is None:
        return None, None
    try:
        return compute(net), None
    except CKNError as error:
        return None, str(error)


def flat(content: Mapping[str, Any], before: str = "", depth: int = 0) -> dict[str, str]:
    """Nested settings as lines: ``options.tau``."""
    lines: dict[str, str] = {}
    for key, value in content.items():
        if isinstance(value, Mapping) and depth < DEEPEST:
            lines |= flat(value, f"{before}{key}.", depth + 1)
        else:
            lines[f"{before}{key}"] = short(value)
    return lines


def _comparison(columns: Sequence[Mapping[str, str]]) -> list[tuple[str, list[str], bool]]:
    """Rows of a table with one column per run: key, values, whether they differ."""
    keys = list(dict.fromkeys(key for column in columns for key in column))
    rows = [(key, [column.get(key, "none") for column in columns]) for key in keys]
    return [(key, values, len(set(values)) > 1) for key, values in rows]


def short(value: Any, depth: int = 0) -> str:
    """A setting as text; long texts and lists are abbreviated."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "none"
    if isinstance(value, float):
        return number(value)
    if isinstance(value, (list, tuple, Mapping)) and depth >= DEEPEST:
        return "…"
    if isinstance(value, Mapping):
        value = [f"{key}: {short(item, depth + 1)}" for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        items = [short(item, depth + 1) for item in (value if len(value) <= 6 else (*value[:2], value[-1]))]
        value = ", ".join(items) if len(value) <= 6 else f"{items[0]}, {items[1]}, …, {items[2]} ({len(value)} values)"
    text = str(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def accuracy(value: float | None) -> str:
    return "not measured" if value is None else percent(value)
