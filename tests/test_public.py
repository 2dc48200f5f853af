"""The public names of the package: pinned, loadable, documented."""

from __future__ import annotations

import inspect
import re

import pytest

import fedande_mpi

PUBLIC = [
    "AnDEClassifier",
    "Dataset",
    "Experiment",
    "count_tables",
    "load_dataset",
    "log_theta",
    "negative_cll",
    "open_results",
    "parent_sets",
    "predict_proba",
    "run_experiment",
]


def test_public_names_are_pinned():
    assert fedande_mpi.__all__ == ["__version__", *PUBLIC]
    assert dir(fedande_mpi) == sorted(fedande_mpi.__all__)


@pytest.mark.parametrize("name", PUBLIC)
def test_each_loads_and_says_what_it_is(name):
    thing = getattr(fedande_mpi, name)
    assert thing.__name__ == name
    assert thing.__module__.startswith("fedande_mpi.")
    summary = (inspect.getdoc(thing) or "").splitlines()[0]
    assert len(summary) > 10
    # a dataclass without a docstring would get its signature
    assert not summary.startswith(f"{name}(")


@pytest.mark.parametrize("name", [name for name in PUBLIC if name[0].islower()])
def test_each_function_describes_every_parameter(name):
    function = getattr(fedande_mpi, name)
    text = inspect.getdoc(function) or ""
    for parameter in inspect.signature(function).parameters:
        assert re.search(rf"^(\w+, )*{parameter}(, \w+)* :", text, re.MULTILINE), parameter


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'parent_set'"):
        fedande_mpi.parent_set  # noqa: B018


def test_the_version_is_the_distributions():
    from importlib.metadata import version

    assert fedande_mpi.__version__ == version("fedande-mpi")


def test_the_letters_are_defined_once():
    for letter in ("m", "d", "o", "n", "P", "q", "C", "T", "L"):
        assert re.search(rf"^{letter}  ", fedande_mpi.__doc__ or "", re.MULTILINE)
