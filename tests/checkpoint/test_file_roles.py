"""One list says which files are never weights, and everything that chooses files uses it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from helpers.building import llama_config, table, write_model
from tiebeam.checkpoint import open_checkpoint
from tiebeam.checkpoint.file_roles import holds_weights, is_document, is_never_weights, is_weights_copy
from tiebeam.errors import UnreadableInput
from tiebeam.studio.model_list import is_model

NEVER_WEIGHTS = [
    "optimizer.pt", "optimizer.bin", "scheduler.pt", "scaler.pt", "rng_state_0.pth", "random_states_0.pkl",
    "training_args.bin", "sampler.bin", "adapter_model.safetensors", "adapter_model.bin", "mmproj-model-f16.gguf",
    "imatrix.gguf", "resume.safetensors",
]  # fmt: skip


@pytest.mark.parametrize("name", NEVER_WEIGHTS)
def test_training_state_and_adapters_are_never_weights(name: str) -> None:
    assert is_never_weights(name)
    assert not holds_weights(name)


@pytest.mark.parametrize(
    "name",
    ["model.safetensors", "pytorch_model.bin", "model-00001-of-00002.safetensors", "consolidated.00.pth", "last.ckpt",
     "llama-q4.gguf", "weights.npz"],
)  # fmt: skip
def test_weights_of_every_format_are_recognised(name: str) -> None:
    assert holds_weights(name)
    assert is_weights_copy(name)


@pytest.mark.parametrize("name", ["tf_model.h5", "flax_model.msgpack", "model.onnx", "model.safetensors.index.json"])
def test_weights_in_other_formats_are_copies_but_cannot_be_opened(name: str) -> None:
    assert is_weights_copy(name)
    assert not holds_weights(name)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer.model", "merges.txt", "README.md"])
def test_config_tokenizer_and_card_are_documents(name: str) -> None:
    assert is_document(name)
    assert not is_weights_copy(name)


@pytest.mark.parametrize("name", ["optimizer.safetensors", "resume.safetensors", "adapter_model.safetensors"])
def test_directory_with_only_training_state_is_not_a_model_anywhere(tmp_path: Path, name: str) -> None:
    save_file({"w": np.zeros((2, 2), np.float32)}, tmp_path / name)
    with pytest.raises(UnreadableInput):
        open_checkpoint(tmp_path)
    assert not is_model(tmp_path)


def test_training_state_beside_a_model_is_ignored(tmp_path: Path) -> None:
    write_model(tmp_path, {"model.embed_tokens.weight": table()}, llama_config())
    save_file({"w": np.zeros((2, 2), np.float32)}, tmp_path / "resume.safetensors")
    assert set(open_checkpoint(tmp_path).tensors) == {"model.embed_tokens.weight"}
    assert is_model(tmp_path)


def test_hub_modules_do_not_import_the_opening_module() -> None:
    """`open` calls the hub, and the hub only finds files: there is no import cycle."""
    code = (
        "import sys, types; package = types.ModuleType('tiebeam.checkpoint');"
        "import importlib.util as u; package.__path__ = list(u.find_spec('tiebeam').submodule_search_locations);"
        "package.__path__ = [package.__path__[0] + '/checkpoint']; sys.modules['tiebeam.checkpoint'] = package;"
        "import tiebeam.checkpoint.hub.repository, tiebeam.checkpoint.hub.hub_files;"
        "assert 'tiebeam.checkpoint.open' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
