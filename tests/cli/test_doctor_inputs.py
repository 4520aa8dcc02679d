"""What people point the doctor at: garbage and things that are no model end in one sentence and exit code 3."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from helpers.building import llama_config, table, write_model
from helpers.tiny_models import build

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
POINTER = (
    "version https://git-lfs.github.com/spec/v1\n"
    "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
)


def model(where: Path) -> Path:
    tensors = {EMBED: table(0), "model.norm.weight": np.ones(8, np.float32)}
    return write_model(where, tensors, llama_config(tie_word_embeddings=True))


def file(name: str, content: bytes) -> Callable[[Path], Path]:
    def write(where: Path) -> Path:
        (where / name).write_bytes(content)
        return where / name

    return write


def directory(**files: str | bytes) -> Callable[[Path], Path]:
    def write(where: Path) -> Path:
        for name, content in files.items():
            path = where / name.replace("__", "/").replace("_dot_", ".")
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return where

    return write


def model_with(**files: str | bytes) -> Callable[[Path], Path]:
    return lambda where: directory(**files)(model(where))


def truncated(where: Path) -> Path:
    path = model(where) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-40])
    return where


def missing_split(where: Path) -> Path:
    (where / "m-00001-of-00003.gguf").write_bytes(b"GGUF" + bytes(64))
    return where / "m-00001-of-00003.gguf"


PNG = b"\x89PNG\r\n\x1a\n" + zlib.compress(bytes(64))
CONFIG = json.dumps(llama_config())
GARBAGE: dict[str, tuple[Callable[[Path], Path], str]] = {
    "an empty file": (file("model.safetensors", b""), "model.safetensors"),
    "an empty file without a suffix": (file("model", b""), "is empty"),
    "an empty gguf": (file("m.gguf", b""), "m.gguf"),
    "an empty bin": (file("pytorch_model.bin", b""), "pytorch_model.bin"),
    "a text file": (file("notes.txt", b"hello world, this is not a model at all\n"), "neither safetensors"),
    "a text file called safetensors": (file("m.safetensors", b"hello world, this is not a model\n"), "safetensors"),
    "a text file called bin": (file("m.bin", b"hello world, this is not a model\n"), "m.bin"),
    "an image": (file("cat.png", PNG), "is a PNG image, not a model"),
    "an image called safetensors": (file("model.safetensors", PNG), "is a PNG image, not a model"),
    "an image called gguf": (file("model.gguf", PNG), "is a PNG image, not a model"),
    "a truncated safetensors": (truncated, "model.safetensors"),
    "an empty directory": (directory(), "is empty"),
    "a directory of text": (directory(a_dot_txt="x", b_dot_md="y"), "expected *.safetensors"),
    "a config alone": (directory(config_dot_json=CONFIG), "expected *.safetensors"),
    "a config that is no JSON": (model_with(config_dot_json="{oops"), "is not valid JSON"),
    "a tokenizer alone": (directory(tokenizer_dot_json="{}", config_dot_json=CONFIG), "a tokenizer (tokenizer.json)"),
    "a tokenizer file": (file("tokenizer.json", b"{}"), "is part of a tokenizer"),
    "an ONNX file": (file("model.onnx", b"\x08\x08\x12\x07pytorch"), "name the checkpoint that it was exported from"),
    "an ONNX directory": (directory(model_dot_onnx=b"\x08\x08", config_dot_json=CONFIG), "an ONNX export (model.onnx)"),
    "an ONNX folder": (directory(onnx__model_dot_onnx=b"\x08", config_dot_json=CONFIG), "an ONNX export (onnx/)"),
    "TensorFlow weights": (directory(tf_model_dot_h5=b"\x89HDF", config_dot_json=CONFIG), "TensorFlow weights"),
    "LFS weights": (model_with(model_dot_safetensors=POINTER), "model.safetensors is a Git LFS pointer"),
    "an LFS file": (file("model.gguf", POINTER.encode()), "run `git lfs pull`"),
    "LFS PyTorch weights": (directory(pytorch_model_dot_bin=POINTER, config_dot_json=CONFIG), "run `git lfs pull`"),
    "an LFS config": (model_with(config_dot_json=POINTER), "config.json is a Git LFS pointer"),
    "an LFS tokenizer": (model_with(tokenizer_dot_json=POINTER), "tokenizer.json is a Git LFS pointer"),
    "an LFS tokenizer model": (model_with(tokenizer_dot_model=POINTER), "tokenizer.model is a Git LFS pointer"),
    "one GGUF of a split": (missing_split, "2 are missing, m-00002-of-00003.gguf first; download all of them"),
    "a directory with one GGUF of a split": (lambda where: missing_split(where).parent, "download all of them"),
    "a missing path": (lambda where: where / "nothing" / "here" / "at" / "all", "does not exist"),
}  # fmt: skip


@pytest.mark.parametrize("what", list(GARBAGE))
@pytest.mark.parametrize("verb", ["doctor", "inspect"])
def test_what_is_no_model_ends_in_one_sentence_and_exit_code_3(verb: str, what: str, run: Any, tmp_path: Path) -> None:
    write, sentence = GARBAGE[what]
    done = run(verb, str(write(tmp_path)))
    assert done.exit_code == 3
    assert done.stdout == ""
    assert sentence in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert "Traceback" not in done.stderr
    assert not re.search(r"\. [A-Z]", done.stderr), "one sentence"


@pytest.mark.parametrize("tree", ["0_Transformer", "modules.json"])
def test_the_model_inside_a_sentence_transformers_tree_is_found(tree: str, run: Any, tmp_path: Path) -> None:
    folder = "0_Transformer" if tree == "0_Transformer" else "0_MyTransformer"
    build("bert").bert.save_pretrained(tmp_path / folder)
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text("{}")
    if tree == "modules.json":
        modules = [
            {"idx": 0, "name": "0", "path": folder, "type": "sentence_transformers.models.Transformer"},
            {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        ]
        (tmp_path / "modules.json").write_text(json.dumps(modules))
    document = json.loads(run("doctor", str(tmp_path), "--json").stdout)
    assert document["model"] == str(tmp_path / folder)
    assert document["architecture"] == "bert"
    assert any("sentence-transformers tree" in note for note in document["notes"])


def test_modules_json_cannot_name_a_folder_outside_the_tree(run: Any, tmp_path: Path) -> None:
    model(tmp_path / "elsewhere")
    tree = tmp_path / "tree"
    tree.mkdir()
    modules = [{"idx": 0, "name": "0", "path": "../elsewhere", "type": "sentence_transformers.models.Transformer"}]
    (tree / "modules.json").write_text(json.dumps(modules))
    assert run("doctor", str(tree)).exit_code == 3


def test_a_bin_beside_the_safetensors_is_said(run: Any, tmp_path: Path) -> None:
    import torch

    torch.save(
        {EMBED: torch.tensor(table(0)), "model.norm.weight": torch.ones(8)}, model(tmp_path) / "pytorch_model.bin"
    )
    document = json.loads(run("doctor", str(tmp_path), "--json").stdout)
    assert document["findings"] == []
    assert "pytorch_model.bin is a second copy; loaders read model.safetensors" in document["notes"]


def test_an_onnx_folder_beside_weights_is_ignored(run: Any, tmp_path: Path) -> None:
    directory(onnx__model_dot_onnx=b"\x08")(model(tmp_path))
    assert run("doctor", str(tmp_path)).exit_code == 0


def test_a_recursive_run_reports_what_is_no_model_and_continues(run: Any, tmp_path: Path) -> None:
    model(tmp_path / "good")
    model_with(model_dot_safetensors=POINTER)(tmp_path / "pointer")
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 2}')
    lora = {"base_model.model.lm_head.lora_A.weight": np.ones((2, 8), np.float32)}
    save_file(lora, tmp_path / "adapter" / "adapter_model.safetensors")
    done = run("doctor", "--recursive", str(tmp_path), "--json")
    assert done.exit_code == 3
    documents = {Path(d.get("model") or d["adapter"]).name: d for d in json.loads(done.stdout)}
    assert "git lfs pull" in documents["pointer"]["error"]
    assert documents["good"]["findings"] == []
    assert documents["adapter"]["touched"]["lora"] == ["lm_head"]
