"""Which weights the studio holds: those of one model, or as many as fit; a model that cannot run drops none of them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from helpers.building import write_model
from helpers.studio_files import tiny_llama
from tiebeam.checkpoint import open_checkpoint
from tiebeam.errors import TiebeamError
from tiebeam.studio.model_list import ModelList
from tiebeam.studio.open_models import OpenModels


def unknown_architecture(where):
    config = json.loads((where / "config.json").read_text())
    (where / "config.json").write_text(json.dumps({**config, "model_type": "t5"}))


def changed(change):
    def break_it(where):
        checkpoint = open_checkpoint(where)
        tensors = {name: np.array(checkpoint.tensor(name)) for name in checkpoint.tensors}
        change(tensors)
        write_model(where, tensors, checkpoint.config)

    return break_it


LAST = "model.layers.0.self_attn.o_proj.weight"
without_a_tensor = changed(lambda tensors: tensors.pop(LAST))
with_a_wrong_shape = changed(lambda tensors: tensors.update({LAST: np.ones((8, 4), np.float32)}))
with_integers = changed(lambda tensors: tensors.update({LAST: np.ones((8, 8), np.int8)}))


@pytest.mark.parametrize("break_it", [unknown_architecture, without_a_tensor, with_a_wrong_shape, with_integers])
def test_a_model_that_cannot_run_leaves_the_weights_that_are_held(tmp_path, break_it):
    good, bad = tiny_llama(tmp_path / "good"), tiny_llama(tmp_path / "bad", seed=1)
    break_it(bad)
    opened = OpenModels()
    runs, cannot = map(opened.open, ModelList((str(good), str(bad))).models())
    opened.weights.load(runs)
    with pytest.raises(TiebeamError):
        opened.weights.load(cannot)
    assert [one["name"] for one in opened.weights.to_dict()["loaded"]] == ["good"]
    with opened.weights.running(runs) as decoder:
        assert decoder.logits([1, 2]).shape == (2, 14)


def test_a_model_that_can_run_takes_the_place_of_the_one_before(tmp_path):
    models = [tiny_llama(tmp_path / name, seed=n) for n, name in enumerate(("one", "two"))]
    opened = OpenModels()
    for source in ModelList(tuple(map(str, models))).models():
        opened.weights.load(opened.open(source))
    assert [one["name"] for one in opened.weights.to_dict()["loaded"]] == ["two"]
