"""Checkpoints that a loader cannot read as they are: what the real loaders do, against what is predicted."""

import json

import pytest
from safetensors.torch import load_file, save_file

from peers import matrix, states
from tiebeam.checkpoint import open_checkpoint
from tiebeam.doctor.loaders import LOADERS
from tiebeam.doctor.loaders.preconditions import preconditions
from tiebeam.inspection import inspect


def _rename(where, change):
    path = where / "model.safetensors"
    save_file({change(name): tensor for name, tensor in load_file(path).items()}, path, {"format": "pt"})


def _config(where, **changes):
    path = where / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


CHANGES = {
    "module": ("prefix", lambda where: _rename(where, lambda name: f"module.{name}")),
    "orig_mod": ("prefix", lambda where: _rename(where, lambda name: f"_orig_mod.{name}")),
    "base_model": ("prefix", lambda where: _rename(where, lambda name: f"base_model.model.{name}")),
    "doubled": ("doubled", lambda where: _rename(where, lambda name: f"model.{name}")),
    "doubled body": ("doubled", lambda where: _rename(where, lambda name: name.replace("model.", "model.model."))),
    "foreign": ("names", lambda where: _rename(where, lambda name: name.replace("lm_head", "output"))),
    "file": ("file", lambda where: (where / "model.safetensors").rename(where / "weights.safetensors")),
    "null": ("flag", lambda where: _config(where, tie_word_embeddings=None)),
    "string": ("flag", lambda where: _config(where, tie_word_embeddings="true")),
    "rows": ("rows", lambda where: _config(where, vocab_size=90)),
}


@pytest.fixture(scope="session")
def changed(tmp_path_factory):
    """{name of the change: directory} of untied llamas, each changed in one way."""
    root = tmp_path_factory.mktemp("changed")
    base = states.Base("llama", root / "base")
    for name, (_, change) in CHANGES.items():
        base.write(root / "llama" / name, "differ", "false")
        change(root / "llama" / name)
    return root / "llama"


@pytest.mark.parametrize("name", CHANGES)
def test_a_failing_precondition_has_its_kind(changed, name):
    checkpoint = open_checkpoint(changed / name)
    assert [unmet.kind for unmet in preconditions(inspect(checkpoint), checkpoint.config)] == [CHANGES[name][0]]


def check(peer, changed, tmp_path):
    cases = [(str(changed / name), "differ", "CAUSAL_LM") for name in CHANGES]
    out = tmp_path / f"{peer.name}.jsonl"
    peer.observe_all(cases, out)
    loader = next(found for found in LOADERS if found.name == peer.loader)
    wrong = {}
    for line in out.read_text().splitlines()[1:]:
        where, entry = json.loads(line)
        checkpoint = open_checkpoint(where)
        predicted = loader.prediction(inspect(checkpoint), checkpoint.config)
        seen = entry.get("outcome") or matrix.llama_outcome("differ", entry)
        if predicted.outcome not in (seen, "not known"):
            wrong[where.rsplit("/", 1)[1]] = (predicted.outcome, seen, entry.get("why"))
    assert wrong == {}


@pytest.mark.slow
def test_transformers_5_and_safetensors_do_what_is_predicted(changed, tmp_path):
    check(matrix.PEERS["transformers5"], changed, tmp_path)
    check(matrix.PEERS["safetensors_load_model"], changed, tmp_path)


@pytest.mark.peer
@pytest.mark.parametrize("peer", ["transformers4", "mlx_lm", "llama_cpp"], indirect=True)
def test_a_peer_does_what_is_predicted(peer, changed, tmp_path):
    check(peer, changed, tmp_path)
