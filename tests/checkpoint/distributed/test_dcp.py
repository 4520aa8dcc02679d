"""DCP directories written by torch on one rank, and hostile or damaged variants of them."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.numpy import save_file
from torch.distributed.checkpoint.filesystem import SerializationFormat, _StorageInfo
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from helpers.building import DIM, VOCAB, llama_config, table
from helpers.mangling import mangled, one_sentence, survives
from tiebeam.checkpoint import open_checkpoint
from tiebeam.checkpoint.distributed import dcp as reader
from tiebeam.errors import TiebeamError, UnreadableInput
from tiebeam.inspection import inspect

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"

pytestmark = pytest.mark.filterwarnings("ignore")


def save(where: Path, state: dict[str, Any], config: dict[str, Any] | None = None, **options: Any) -> Path:
    dcp.save(state, storage_writer=dcp.FileSystemWriter(where, **options), no_dist=True)
    if config is not None:
        (where / "config.json").write_text(json.dumps(config))
    return where


def two(same: bool = False) -> dict[str, torch.Tensor]:
    return {
        EMBED: torch.tensor(table(0)),
        HEAD: torch.tensor(table(0 if same else 1)),
        "model.norm.weight": torch.ones(DIM),
    }


def edit(where: Path, change: Callable[[Metadata], None]) -> Path:
    """Edit the metadata with torch's own classes and write it back."""
    metadata = pickle.loads((where / ".metadata").read_bytes())
    change(metadata)
    (where / ".metadata").write_bytes(pickle.dumps(metadata))
    return where


def index(name: str) -> MetadataIndex:
    return MetadataIndex(name, [0, 0])


def refusal(source: Path) -> str:
    with pytest.raises(UnreadableInput) as caught:
        inspect(source)
    assert one_sentence(caught.value)
    return str(caught.value)


# What is stored


@pytest.mark.parametrize(
    ("names", "declared", "tie"),
    [
        ((EMBED, HEAD), False, "untied"),
        ((EMBED, HEAD), True, "torn"),
        ((EMBED,), True, "shared"),
        ((EMBED,), False, "headless"),
        ((HEAD,), True, "swapped"),
    ],
)
def test_tie_of_a_dcp_checkpoint_is_as_in_other_formats(
    tmp_path: Path, names: tuple[str, ...], declared: bool, tie: str
) -> None:
    state = {name: tensor for name, tensor in two().items() if name in (*names, "model.norm.weight")}
    save(tmp_path / "x", {"model": state}, llama_config(tie_word_embeddings=declared))
    assert inspect(tmp_path / "x").tie == tie


def test_one_range_with_two_names_is_shared_and_two_ranges_are_a_twin(tmp_path: Path) -> None:
    where = save(tmp_path / "x", two(same=True), llama_config(tie_word_embeddings=True))
    assert inspect(where).tie == "twin"

    def share(metadata: Metadata) -> None:
        metadata.storage_data[index(HEAD)] = metadata.storage_data[index(EMBED)]

    report = inspect(edit(where, share))
    assert (report.tie, report.pair.one_storage, report.params.stored) == ("shared", True, VOCAB * DIM + DIM)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"single_file_per_rank": False},
        {"thread_count": 2},
        {"serialization_format": SerializationFormat.SAFETENSORS},
    ],
    ids=["one file", "a file a tensor", "two threads", "safetensors"],
)
def test_files_of_every_dcp_writer_are_read(tmp_path: Path, options: dict[str, Any]) -> None:
    state = two() | {"scalar": torch.tensor(3.5), "empty": torch.ones(0, 4), "half": torch.ones(3, 2).bfloat16()}
    if not options.get("serialization_format"):
        state["turned"] = torch.arange(6.0).reshape(2, 3).T
        state["counts"] = torch.arange(5)
    checkpoint = open_checkpoint(save(tmp_path / "x", state, **options))
    assert set(checkpoint.tensors) == set(state)
    assert inspect(checkpoint).tie == "untied"
    for name, tensor in state.items():
        assert checkpoint.tensors[name].shape == tuple(tensor.shape)
        np.testing.assert_array_equal(checkpoint.tensor(name), tensor.float().numpy(), err_msg=name)


@pytest.mark.parametrize(
    ("nest", "at"),
    [
        (lambda model, optim: {**model}, ""),
        (lambda model, optim: {"model": model, "optim": optim}, "model"),
        (lambda model, optim: {"app": {"model": model, "optimizer": optim}, "epoch": 3}, "app.model"),
        (lambda model, optim: {"state_dict": model, "optimizer_states": [optim], "lr_schedulers": []}, "state_dict"),
        (lambda model, optim: {**model, **{f"optim.{key}": value for key, value in optim["state"].items()}}, ""),
    ],
)
def test_model_is_found_in_a_trainer_checkpoint(tmp_path: Path, nest: Any, at: str) -> None:
    moments = {f"{name}.exp_avg": torch.zeros_like(tensor) for name, tensor in two().items()}
    state = nest(two(), {"state": moments, "param_groups": [{"lr": 0.1}]})
    checkpoint = open_checkpoint(save(tmp_path / "x", state))
    assert set(checkpoint.tensors) == set(two())
    assert (f"the weights are under {at!r}" in checkpoint.notes[0]) is bool(at)


def test_wrapper_prefix_in_the_names_is_handled(tmp_path: Path) -> None:
    state = {f"module.{name}": tensor for name, tensor in two().items()}
    report = inspect(save(tmp_path / "x", {"model": state}, llama_config(tie_word_embeddings=False)))
    assert report.tie == "untied"


def test_config_of_the_parent_folder_is_used_and_a_missing_one_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = save(tmp_path / "step-1", two())
    assert inspect(where).pair.declared_by == "there is no config.json"
    for other in ('{"lr": 0.1}', "not json"):  # of a training, not of a model
        (tmp_path / "config.json").write_text(other)
        assert inspect(where).pair.declared_by == "there is no config.json"
    (tmp_path / "config.json").write_text(json.dumps(llama_config(tie_word_embeddings=True)))
    assert inspect(where).tie == "torn"
    assert "config.json is the one in the folder above" in inspect(where).notes
    monkeypatch.chdir(where)
    assert inspect(".").tie == "torn"


def test_metadata_files_of_all_ranks_are_joined(tmp_path: Path) -> None:
    """As a writer without collectives writes it: `__0.metadata`, `__1.metadata`."""
    first, second = two(), two()
    where = save(tmp_path / "x", {EMBED: first[EMBED]})
    other = save(tmp_path / "y", {HEAD: second[HEAD]})

    def rename(metadata: Metadata) -> None:
        metadata.storage_data = {
            key: replace(info, relative_path="__1_0.distcp") for key, info in metadata.storage_data.items()
        }

    edit(other, rename)
    (where / ".metadata").rename(where / "__0.metadata")
    shutil.copy(other / ".metadata", where / "__1.metadata")
    shutil.copy(other / "__0_0.distcp", where / "__1_0.distcp")
    assert inspect(where).tie == "untied"


def test_hugging_face_writer_with_one_rank_makes_an_ordinary_model(tmp_path: Path) -> None:
    dcp.save(two(), storage_writer=HuggingFaceStorageWriter(str(tmp_path / "x")), no_dist=True)
    report = inspect(tmp_path / "x")
    assert (report.format, report.tie) == ("safetensors", "untied")


def test_tensor_of_an_unknown_type_is_skipped_with_a_note(tmp_path: Path) -> None:
    where = save(tmp_path / "x", two() | {"packed": torch.zeros(4, 4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)})
    checkpoint = open_checkpoint(where)
    assert set(checkpoint.tensors) == set(two())
    assert checkpoint.notes[1] == (
        "skipped tensors with an unsupported element type (1): 'packed' is torch.float4_e2m1fn_x2"
    )


def cut(where: Path, boxes: list[tuple[list[int], list[int]]]) -> Path:
    """A DCP directory of one tensor in the given chunks (offsets, sizes), one file per chunk."""
    whole = torch.tensor(table(0))
    where.mkdir()
    storage, chunks = {}, []
    for i, (offsets, sizes) in enumerate(boxes):
        piece = whole[offsets[0] : offsets[0] + sizes[0], offsets[1] : offsets[1] + sizes[1]]
        with (where / f"__{i}_0.distcp").open("wb") as out:
            torch.save(piece.clone() if i % 2 else piece.T.contiguous().T, out)  # every other one by columns
        length = (where / f"__{i}_0.distcp").stat().st_size
        storage[MetadataIndex(EMBED, offsets)] = _StorageInfo(f"__{i}_0.distcp", 0, length)
        chunks.append(_chunk(offsets, sizes))
    entry = TensorStorageMetadata(TensorProperties(torch.float32), torch.Size(whole.shape), chunks)
    (where / ".metadata").write_bytes(pickle.dumps(Metadata({EMBED: entry}, None, storage)))
    return where


@pytest.mark.parametrize(
    "boxes",
    [
        [([r, c], [20, 4]) for r in (0, 20) for c in (0, 4)],  # a mesh of rows and columns
        [([0, 0], [10, 8]), ([10, 0], [30, 3]), ([10, 3], [5, 5]), ([15, 3], [25, 5])],  # no mesh, and yet whole
        [([r, 0], [1, 8]) for r in range(VOCAB)],
    ],
    ids=["mesh", "uneven", "rows"],
)
def test_tensor_sharded_along_several_dimensions_is_joined(
    tmp_path: Path, boxes: list[tuple[list[int], list[int]]]
) -> None:
    checkpoint = open_checkpoint(cut(tmp_path / "x", boxes))
    np.testing.assert_array_equal(checkpoint.tensor(EMBED), table(0))
    for start, stop in [(0, 1), (9, 16), (14, 15), (19, 21), (39, 40)]:
        np.testing.assert_array_equal(checkpoint.rows(EMBED, start, stop), table(0)[start:stop])
    raw = table(0).tobytes()
    assert checkpoint.read_bytes(EMBED, 301, 333) == raw[301:333]


def test_overlapping_chunks_of_the_right_total_size_are_refused(tmp_path: Path) -> None:
    boxes = [([0, 0], [20, 8]), ([20, 0], [20, 4]), ([20, 2], [20, 4])]
    with pytest.raises(UnreadableInput, match="its shards overlap"):
        open_checkpoint(cut(tmp_path / "x", boxes))


# Numbers that are not read


def test_transformed_blob_is_reported_as_unreadable(tmp_path: Path) -> None:
    def compress(metadata: Metadata) -> None:
        for key in (EMBED, HEAD):
            metadata.storage_data[index(key)].transform_descriptors = ["zstd"]

    where = edit(save(tmp_path / "x", two(), llama_config(tie_word_embeddings=True)), compress)
    message = refusal(where)
    assert f"{EMBED} [{VOCAB}, {DIM}] and {HEAD} [{VOCAB}, {DIM}]" in message
    assert "whether they are equal is not known" in message


def test_tied_model_with_one_matrix_needs_no_numbers(tmp_path: Path) -> None:
    def compress(metadata: Metadata) -> None:
        metadata.storage_data[index(EMBED)].transform_descriptors = ["zstd"]

    where = save(tmp_path / "x", {EMBED: two()[EMBED]}, llama_config(tie_word_embeddings=True))
    assert inspect(edit(where, compress)).tie == "shared"


# Hostile and damaged


@pytest.mark.parametrize("path", ["../outside.distcp", "/etc/passwd", "a/../../outside.distcp", "", "x\0y"])
def test_path_out_of_the_directory_is_refused(tmp_path: Path, path: str) -> None:
    where = save(tmp_path / "inside", two())
    shutil.copy(where / "__0_0.distcp", tmp_path / "outside.distcp")
    (tmp_path / "config.json").write_text(json.dumps(llama_config()))  # the folder above is read, and still not left to

    def lead_out(metadata: Metadata) -> None:
        metadata.storage_data[index(HEAD)].relative_path = path

    assert "outside the model's directory" in refusal(edit(where, lead_out))


def test_link_out_of_the_directory_is_refused(tmp_path: Path) -> None:
    where = save(tmp_path / "inside", two())
    (where / "__0_0.distcp").rename(tmp_path / "outside.distcp")
    (where / "__0_0.distcp").symlink_to(tmp_path / "outside.distcp")
    assert "outside the model's directory" in refusal(where)


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("the pickle was run",)


def test_nothing_in_the_metadata_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def arm(metadata: Metadata) -> None:
        metadata.storage_meta = Bomb()
        metadata.planner_data = Bomb()

    where = save(tmp_path / "x", two())
    edit(where, arm)
    assert inspect(where).tie == "untied"
    (where / ".metadata").write_bytes(pickle.dumps(Bomb()))
    assert "not the metadata" in refusal(where)
    assert not (tmp_path / "the pickle was run").exists()


def test_nothing_in_a_blob_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    where = save(tmp_path / "x", two())
    with (where / "__9_0.distcp").open("wb") as out:
        torch.save([Bomb(), torch.ones(VOCAB * DIM)], out)

    def lead(metadata: Metadata) -> None:
        info = metadata.storage_data[index(HEAD)]
        info.relative_path, info.offset, info.length = "__9_0.distcp", 0, (where / "__9_0.distcp").stat().st_size

    assert "does not hold a tensor" in refusal(edit(where, lead))
    assert not (tmp_path / "the pickle was run").exists()


def _chunk(offsets: list[int], sizes: list[int]) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))


def _grow(metadata: Metadata) -> None:
    metadata.state_dict_metadata[EMBED].size = torch.Size([1 << 40, DIM])
    metadata.state_dict_metadata[EMBED].chunks = [_chunk([0, 0], [1 << 40, DIM])]


def _hole(metadata: Metadata) -> None:
    metadata.state_dict_metadata[EMBED].chunks = [_chunk([0, 0], [VOCAB - 1, DIM])]


def _stick_out(metadata: Metadata) -> None:
    metadata.state_dict_metadata[EMBED].chunks = [_chunk([0, 0], [VOCAB, DIM + 1])]


def _overlap(metadata: Metadata) -> None:
    half = VOCAB // 2
    metadata.state_dict_metadata[EMBED].chunks = [_chunk([0, 0], [half, DIM]), _chunk([1, 0], [half, DIM])]
    metadata.storage_data[MetadataIndex(EMBED, [1, 0])] = metadata.storage_data[index(EMBED)]


def _another_shape(metadata: Metadata) -> None:
    metadata.state_dict_metadata[EMBED].size = torch.Size([DIM, VOCAB])
    metadata.state_dict_metadata[EMBED].chunks = [_chunk([0, 0], [DIM, VOCAB])]


def _past_the_end(metadata: Metadata) -> None:
    metadata.storage_data[index(EMBED)].offset += 1 << 30


def _negative(metadata: Metadata) -> None:
    metadata.storage_data[index(EMBED)].offset = -1


def _nowhere(metadata: Metadata) -> None:
    del metadata.storage_data[index(EMBED)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_grow, "more than its files hold"),
        (_hole, "8 of its 320 numbers are missing"),
        (_stick_out, "exceeds it"),
        (_overlap, "its shards overlap"),
        (_another_shape, "should be F32 [8, 40]"),
        (_past_the_end, "is truncated"),
        (_negative, "impossible byte range"),
        (_nowhere, "does not say where"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_inconsistent_metadata_is_refused(tmp_path: Path, change: Any, message: str) -> None:
    where = edit(save(tmp_path / "x", two()), change)
    with pytest.raises(UnreadableInput, match=re.escape(message)) as caught:
        open_checkpoint(where).tensor(EMBED)
    assert one_sentence(caught.value)


def test_chunk_list_referenced_by_every_tensor_exceeds_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "MAX_CHUNKS", 20_000)
    where = save(tmp_path / "x", two())

    def multiply(metadata: Metadata) -> None:
        entry = metadata.state_dict_metadata[EMBED]
        entry.chunks = [_chunk([0, 0], [VOCAB, DIM])] * 500
        metadata.state_dict_metadata = {str(i): entry for i in range(500)}
        info = metadata.storage_data[index(EMBED)]
        metadata.storage_data = {MetadataIndex(str(i), [0, 0]): info for i in range(500)}

    assert "refusing to read" in refusal(edit(where, multiply))


def test_damaged_metadata_ends_in_a_result_or_one_sentence(tmp_path: Path) -> None:
    where = save(tmp_path / "x", {"model": two(), "optim": {"state": {"exp_avg": torch.ones(3)}}})
    path = where / ".metadata"
    outcomes = {survives(path, damaged) for damaged in mangled(path.read_bytes(), 600, seed=11)}
    assert outcomes == {True, False}


def test_truncated_metadata_is_refused_in_one_sentence(tmp_path: Path) -> None:
    where = save(tmp_path / "x", two())
    raw = (where / ".metadata").read_bytes()
    for length in range(0, len(raw), 23):
        assert not survives(where / ".metadata", raw[:length])


def test_damaged_blob_ends_in_a_result_or_one_sentence(tmp_path: Path) -> None:
    where = save(tmp_path / "x", {EMBED: two()[EMBED][:6], HEAD: two()[HEAD][:6]})
    path = where / "__0_0.distcp"
    outcomes = {survives(path, damaged) for damaged in mangled(path.read_bytes(), 300, seed=12)}
    assert outcomes == {True, False}


# Shards of the Hugging Face writer


def shard(where: Path, number: int, offsets: object, **tensors: np.ndarray) -> None:
    where.mkdir(exist_ok=True)
    save_file(
        tensors,
        where / f"shard-{number:05d}-model-00001-of-00001.safetensors",
        metadata={"DCP_SHARDING_INFO": offsets if isinstance(offsets, str) else json.dumps(offsets)},
    )


@pytest.mark.parametrize("level", ["", "model."])
def test_optimizer_tensors_in_shards_are_noted_and_not_counted(tmp_path: Path, level: str) -> None:
    names = (level + EMBED, level + HEAD, "optimizer.0.1.exp_avg")
    for number, rows in enumerate((slice(0, 20), slice(20, VOCAB))):
        offsets = {name: {"saved_offsets": [rows.start, 0]} for name in names}
        shard(tmp_path, number + 1, offsets, **{name: table(i)[rows] for i, name in enumerate(names)})
    report = inspect(tmp_path)
    assert (report.tie, report.params.stored) == ("untied", 2 * VOCAB * DIM)
    assert (report.pair.embed.name, report.pair.head.name) == (EMBED, HEAD)
    assert report.notes[0].endswith("1 tensor of an optimizer ignored")


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ("{", "has no offsets"),
        ("[]", "has no offsets"),
        ({}, "does not say which part"),
        ({"w": {"saved_offsets": [4]}}, "does not say which part"),
        ({"w": {"saved_offsets": [-1, 0]}}, "does not say which part"),
        ({"w": {"saved_offsets": [5, 0]}}, "numbers are missing"),
        ({"w": {"saved_offsets": [1, 0]}}, "overlap"),
    ],
)
def test_shards_that_do_not_fit_are_refused(tmp_path: Path, offsets: object, message: str) -> None:
    shard(tmp_path, 1, {"w": {"saved_offsets": [0, 0]}}, w=table(0)[:4])
    shard(tmp_path, 2, offsets, w=table(1)[:4])
    with pytest.raises(TiebeamError, match=message) as caught:
        open_checkpoint(tmp_path)
    assert one_sentence(caught.value)
