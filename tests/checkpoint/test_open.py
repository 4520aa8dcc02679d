"""Opening a checkpoint by name: which files are the model, and the message if none are."""

from __future__ import annotations

import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from helpers.building import llama_config, table, write_model, write_sharded
from tiebeam.checkpoint import open_checkpoint
from tiebeam.errors import UnreadableInput

SHARDS = [{"model.embed_tokens.weight": table(0)}, {"lm_head.weight": table(1)}]
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def refusal(source: Path | str) -> str:
    with pytest.raises(UnreadableInput) as caught:
        open_checkpoint(source)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def write_index(where: Path, weight_map: Any) -> None:
    (where / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


# One model among many files


def test_model_safetensors_is_the_model_whatever_else_is_there(tmp_path: Path) -> None:
    write_sharded(tmp_path, SHARDS, llama_config())
    write_model(tmp_path, {"a": table(3)}, None)
    (tmp_path / "pytorch_model.bin").write_bytes(b"broken")
    checkpoint = open_checkpoint(tmp_path)
    assert list(checkpoint.tensors) == ["a"]
    assert checkpoint.architecture == "llama"
    assert checkpoint.config == llama_config()


@pytest.mark.parametrize("name", ["", FIRST, SECOND, "model.safetensors.index.json"])
def test_indexed_model_opens_by_any_of_its_files(tmp_path: Path, name: str) -> None:
    write_sharded(tmp_path, SHARDS, llama_config())
    checkpoint = open_checkpoint(tmp_path / name)
    assert set(checkpoint.tensors) == {"model.embed_tokens.weight", "lm_head.weight"}
    assert checkpoint.architecture == "llama"
    np.testing.assert_array_equal(checkpoint.tensor("lm_head.weight"), table(1))


def test_unindexed_files_are_one_model(tmp_path: Path) -> None:
    save_file({"a": table(0)}, tmp_path / "one.safetensors")
    save_file({"b": table(1)}, tmp_path / "two.safetensors")
    assert set(open_checkpoint(tmp_path).tensors) == {"a", "b"}
    assert set(open_checkpoint(tmp_path / "two.safetensors").tensors) == {"b"}


def test_unindexed_shards_are_preferred_to_a_consolidated_copy(tmp_path: Path) -> None:
    write_sharded(tmp_path, SHARDS, None)
    (tmp_path / "model.safetensors.index.json").unlink()
    save_file({**SHARDS[0], **SHARDS[1]}, tmp_path / "consolidated.safetensors")
    assert {info.file for info in open_checkpoint(tmp_path).tensors.values()} == {FIRST, SECOND}


def test_training_state_beside_the_weights_is_ignored(tmp_path: Path) -> None:
    save_file({"a": table(0)}, tmp_path / "weights.safetensors")
    for name in (
        "adapter_model.safetensors",
        "optimizer.safetensors",
        "optimizer.bin",
        "scheduler.pt",
        "rng_state.pth",
    ):
        (tmp_path / name).write_bytes(b"not weights")
    assert list(open_checkpoint(tmp_path).tensors) == ["a"]


def test_link_named_by_the_user_may_point_anywhere(tmp_path: Path) -> None:
    write_sharded(tmp_path / "store", SHARDS, llama_config())
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "file.safetensors").symlink_to(tmp_path / "store" / FIRST)
    (tmp_path / "links" / "folder").symlink_to(tmp_path / "store")
    for source in ("file.safetensors", "folder", f"folder/{FIRST}"):
        assert len(open_checkpoint(tmp_path / "links" / source).tensors) == 2


def test_format_is_detected_by_content_and_not_by_name(tmp_path: Path) -> None:
    save_file({"a": table(0)}, tmp_path / "weights")
    assert open_checkpoint(tmp_path / "weights").format == "safetensors"


# What is not there


@pytest.mark.parametrize("source", ["nothing", "/nothing/at/all", "./no/such/thing", "~x", "a\0b", "x" * 5000, "://"])
def test_source_that_does_not_exist(source: str) -> None:
    refusal(source)


def test_empty_name_is_refused() -> None:
    assert "is empty; name a directory" in refusal("")


def test_empty_directory(tmp_path: Path) -> None:
    assert refusal(tmp_path).startswith(f"{tmp_path} is empty; expected *.safetensors")


def test_directory_of_text(tmp_path: Path) -> None:
    for name in ("a.txt", "b.md", "c.py", "d.json"):
        (tmp_path / name).write_text("message")
    assert "holds a.txt, b.md, c.py …; expected" in refusal(tmp_path)


def test_directory_of_directories_names_one_of_them(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-500").mkdir()
    assert f"name one, as {tmp_path}/checkpoint-500" in refusal(tmp_path)


def test_adapter_is_not_a_model(tmp_path: Path) -> None:
    save_file({"a": table(0)}, tmp_path / "adapter_model.safetensors")
    assert "holds an adapter" in refusal(tmp_path)


def test_configuration_is_not_a_model(tmp_path: Path) -> None:
    write_model(tmp_path, {"a": table(0)}, llama_config())
    assert "name its directory" in refusal(tmp_path / "config.json")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("m.gguf", b"GGUX" + bytes(40), "it starts with b'GGUX', not b'GGUF'"),
        ("m.npz", b"not a zip archive", "not a zip archive"),
        ("m.safetensors", b"\0" * 40, "not a safetensors file"),
        ("m.safetensors", b"", "is 0 bytes long"),
        ("m", b"", "m is empty"),
        ("m.weights", b"some other thing entirely", "is neither safetensors, GGUF, PyTorch nor npz"),
        ("m.txt", b"x", "is neither"),
    ],
)
def test_wrong_magic(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    assert message in refusal(tmp_path / name)


@pytest.mark.timeout(20)
def test_pipe_device_and_link_loop_do_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.safetensors")
    assert "not a regular file" in refusal(tmp_path / "model.safetensors")
    assert "not a regular file" in refusal(tmp_path)
    assert "not a regular file" in refusal("/dev/zero")
    (tmp_path / "loop").symlink_to("loop")
    assert "to itself" in refusal(tmp_path / "loop")
    (tmp_path / "gone").symlink_to("nowhere")
    assert "to a missing file" in refusal(tmp_path / "gone")
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors").symlink_to("model.safetensors")
    assert "to itself" in refusal(tmp_path)


def test_link_loop_beside_a_good_model_is_ignored(tmp_path: Path) -> None:
    write_model(tmp_path, {"a": table(0)}, None)
    (tmp_path / "loop").symlink_to("loop")
    assert list(open_checkpoint(tmp_path).tensors) == ["a"]


# Shards and their index


def test_missing_shard_is_named(tmp_path: Path) -> None:
    write_sharded(tmp_path, SHARDS, None)
    (tmp_path / SECOND).unlink()
    assert f"names the shard {SECOND}, which is missing" in refusal(tmp_path)
    assert f"{FIRST} is one of 2 shards and {SECOND} is missing" in refusal(tmp_path / FIRST)
    (tmp_path / "model.safetensors.index.json").unlink()
    assert f"{FIRST} is one of 2 shards and {SECOND} is missing" in refusal(tmp_path)


def test_number_of_shards_above_the_limit_is_refused(tmp_path: Path) -> None:
    name = "model-00001-of-99999999.safetensors"
    save_file({"a": table(0)}, tmp_path / name)
    assert "is one of 99,999,999 shards, which exceeds the limit of 100,000" in refusal(tmp_path)


@pytest.mark.parametrize("shard", ["../secret.safetensors", "/etc/passwd", "a/../../secret.safetensors", "..", "x\0y"])
def test_index_may_not_name_a_path_outside_the_directory(tmp_path: Path, shard: str) -> None:
    save_file({"a": table(0)}, tmp_path / "secret.safetensors")
    model = tmp_path / "model"
    model.mkdir()
    write_index(model, {"a": shard})
    assert "outside the model's directory; refusing to read" in refusal(model)


def test_shard_may_not_be_a_link_out_of_the_directory(tmp_path: Path) -> None:
    write_sharded(tmp_path / "model", SHARDS, None)
    (tmp_path / "model" / SECOND).rename(tmp_path / "secret")
    (tmp_path / "model" / SECOND).symlink_to("../secret")
    assert "outside the model's directory" in refusal(tmp_path / "model")


def test_shard_may_be_in_a_subfolder_of_the_model(tmp_path: Path) -> None:
    write_model(tmp_path / "parts", {"a": table(0)}, None)
    write_index(tmp_path, {"a": "parts/model.safetensors"})
    np.testing.assert_array_equal(open_checkpoint(tmp_path).tensor("a"), table(0))
    write_index(tmp_path, {"a": "parts/gone.safetensors"})
    assert "does not exist" in refusal(tmp_path)


@pytest.mark.parametrize("weight_map", [None, [], "text", {"a": 1}, {"a": None}, {"a": ["x"]}])
def test_index_without_a_map(tmp_path: Path, weight_map: Any) -> None:
    write_index(tmp_path, weight_map)
    assert "has no weight_map" in refusal(tmp_path)


def test_index_that_names_nothing(tmp_path: Path) -> None:
    write_index(tmp_path, {})
    assert "names 0 shards" in refusal(tmp_path)


def test_index_with_the_wrong_file_of_a_tensor_is_read_by_the_headers(tmp_path: Path) -> None:
    """transformers does the same: it reads every shard that the index names."""
    write_sharded(tmp_path, SHARDS, None)
    write_index(tmp_path, {"model.embed_tokens.weight": SECOND, "lm_head.weight": FIRST})
    opened = open_checkpoint(tmp_path)
    assert opened.tensors["model.embed_tokens.weight"].file == FIRST
    assert opened.stale == ()


def test_index_entries_that_no_file_stores_are_stale(tmp_path: Path) -> None:
    write_sharded(tmp_path, SHARDS, None)
    write_index(tmp_path, {"model.embed_tokens.weight": FIRST, "lm_head.weight": SECOND, "more": FIRST})
    assert open_checkpoint(tmp_path).stale == ("more",)


def test_tensor_missing_in_the_index_is_still_listed(tmp_path: Path) -> None:
    write_sharded(tmp_path, [{"a": table(0), "b": table(1)}], None)
    write_index(tmp_path, {"a": "model-00001-of-00001.safetensors"})
    assert set(open_checkpoint(tmp_path).tensors) == {"a", "b"}


def test_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    save_file({"a": table(0)}, tmp_path / "one.safetensors")
    save_file({"a": table(1), "b": table(1)}, tmp_path / "two.safetensors")
    assert "stores 'a' twice, in one.safetensors and in two.safetensors" in refusal(tmp_path)


def test_shards_of_two_models_are_distinguished(tmp_path: Path) -> None:
    for stem in ("small", "large"):
        save_file({"a": table(0)}, tmp_path / f"{stem}-00001-of-00001.safetensors")
    assert "holds 2 models" in refusal(tmp_path)
    assert list(open_checkpoint(tmp_path / "small-00001-of-00001.safetensors").tensors) == ["a"]


# Configurations


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "config.json is not valid JSON"),
        (b"{", "config.json is not valid JSON"),
        (b"[]", "holds a JSON list, not an object"),
        (b"null", "holds a JSON NoneType"),
        (b'{"a": "\xe9"}', "config.json is not UTF-8"),
        (b'{"tie": 1, "tie": 2}', "config.json defines 'tie' twice"),
        (b'{"text_config": {"tie": 1, "tie": 2}}', "config.json defines 'tie' twice"),
        (b'{"a": "\\ud800"}', "unpaired surrogate"),
        (b'{"a":' * 50_000, "too deeply"),
        (b"[" * 50_000, "too deeply"),
        (b'{"a": ' + b"1" * 5000 + b"}", "digits"),
    ],
)
def test_configuration_that_cannot_be_read(tmp_path: Path, text: bytes, message: str) -> None:
    write_model(tmp_path, {"a": table(0)}, None)
    (tmp_path / "config.json").write_bytes(text)
    assert message in refusal(tmp_path)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"model_type": 5},
        {"a": "\\", "b": '"', "c": "é", "d": "\u2028"},
        {"a": [1, {"b": "x", "c": ["y", "y"]}, "z"]},
    ],
)
def test_odd_configuration_is_read_as_it_is(tmp_path: Path, config: dict[str, Any]) -> None:
    write_model(tmp_path, {"a": table(0)}, config)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.config == config
    assert checkpoint.architecture is None


def test_configuration_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    write_model(tmp_path, {"a": table(0)}, None)
    (tmp_path / "config.json").write_bytes(b"\xef\xbb\xbf" + b'{"model_type": "llama"}')
    assert open_checkpoint(tmp_path).architecture == "llama"


def test_huge_configuration_is_not_read(tmp_path: Path) -> None:
    write_model(tmp_path, {"a": table(0)}, None)
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(1 << 40)
    tracemalloc.start()
    try:
        assert "exceeds the limit of 67,108,864" in refusal(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_large_configuration_is_read_whole(tmp_path: Path) -> None:
    config = {"id2label": {str(i): f"label {i}" for i in range(20_000)}}
    write_model(tmp_path, {"a": table(0)}, config)
    assert open_checkpoint(tmp_path).config == config
