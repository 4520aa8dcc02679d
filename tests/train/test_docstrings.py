"""The examples in the docstrings of tiebeam.nn and tiebeam.train run and print what they show."""

import doctest
from importlib import import_module

import pytest

MODULES = [
    "tiebeam.nn.collectives",
    "tiebeam.nn.gpt",
    "tiebeam.nn.gpt_config",
    "tiebeam.nn.gradient_share",
    "tiebeam.nn.loss",
    "tiebeam.nn.provenance",
    "tiebeam.nn.tied_embedding",
    "tiebeam.train.device",
    "tiebeam.train.learning_rates",
    "tiebeam.train.optimizers",
    "tiebeam.train.schedule",
    "tiebeam.train.settings",
    "tiebeam.cli.option_names",
]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_run(name: str) -> None:
    failed, attempted = doctest.testmod(import_module(name))
    assert failed == 0
    assert attempted > 0
