"""Which files are copied, what is refused, and that a failure leaves no files."""

import json
import os
import resource
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiebeam
from helpers.building import llama_config, table, write_model, write_sharded
from tiebeam.checkpoint import open_checkpoint
from tiebeam.errors import BadRequest, ProofFailed, UnreadableInput
from tiebeam.surgery import edits, execute, open_source, plan_untie, tie, untie

EMBED, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
QUICK: dict[str, Any] = {"proof": False, "durable": False}
SRC = str(Path(tiebeam.__file__).parent.parent)


@pytest.fixture
def source(tmp_path):
    tensors = {EMBED: table(0), NORM: np.ones(8, np.float32)}
    return write_model(tmp_path / "source", tensors, llama_config(tie_word_embeddings=True), {"format": "pt"})


@pytest.fixture
def sharded(tmp_path):
    shards = [{EMBED: table(0), "a": table(2)}, {"b": table(3), "c": table(5)}, {NORM: np.ones(8, np.float32)}]
    return write_sharded(tmp_path / "source", shards, llama_config(tie_word_embeddings=True))


def names(where):
    return sorted(p.relative_to(where).as_posix() for p in where.rglob("*") if p.is_file())


def only_source(tmp_path):
    return [p.name for p in tmp_path.iterdir()] == ["source"]


def test_other_files_are_copied_except_other_copies_of_the_weights(source, tmp_path):
    for name in ("tokenizer.json", "generation_config.json", "1_Pooling/config.json", "README.md", ".gitattributes"):
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text("{}")
    for name in (
        "pytorch_model.bin",
        "optimizer.pt",
        "model.gguf",
        "onnx/model.onnx",
        ".git/HEAD",
        "flax_model.msgpack",
    ):
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text("old weights")
    outcome = untie(source, tmp_path / "u", **QUICK)
    assert names(tmp_path / "u") == [
        ".gitattributes", "1_Pooling/config.json", "README.md", "config.json", "generation_config.json",
        "model.safetensors", "tokenizer.json",
    ]  # fmt: skip
    assert set(outcome.left) == {
        "pytorch_model.bin",
        "optimizer.pt",
        "model.gguf",
        "onnx/model.onnx",
        "flax_model.msgpack",
    }


def test_the_model_card_gets_a_section_and_keeps_its_text(source, tmp_path):
    card = b"---\nlicense: mit\n---\n# A model\n\xff not UTF-8\n"
    (source / "README.md").write_bytes(card)
    outcome = untie(source, tmp_path / "u", **QUICK)
    written = (tmp_path / "u" / "README.md").read_bytes()
    assert written.startswith(card.rstrip(b"\n"))
    assert b"## Changed by tiebeam" in written
    assert f"`tiebeam untie` {tiebeam.__version__}".encode() in written
    assert all(digest.encode() in written for digest in outcome.digests)
    again = untie(source, tmp_path / "v", **QUICK)
    assert again.digests == outcome.digests
    assert again.digests[0] != again.digests[1]


def test_digests_do_not_depend_on_the_sharding(tmp_path):
    tensors = {EMBED: table(0), NORM: np.ones(8, np.float32)}
    config = llama_config(tie_word_embeddings=True)
    one = write_model(tmp_path / "one", tensors, config)
    two = write_sharded(tmp_path / "two", [{name: array} for name, array in tensors.items()], config)
    assert untie(one, tmp_path / "a", **QUICK).digests == untie(two, tmp_path / "b", **QUICK).digests


def test_links_in_the_hub_cache_are_resolved(source, tmp_path, monkeypatch):
    from huggingface_hub import constants

    repository, commit = tmp_path / "models--org--name", "a" * 40
    snapshot = repository / "snapshots" / commit
    for folder in (repository / "blobs", repository / "refs", snapshot):
        folder.mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    for i, path in enumerate(sorted(source.iterdir())):
        path.rename(repository / "blobs" / str(i))
        (snapshot / path.name).symlink_to(Path("../../blobs") / str(i))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    for i, name in enumerate((snapshot, "org/name")):
        target = tmp_path / f"u{i}"
        untie(name, target, **QUICK)
        assert all(not p.is_symlink() for p in target.iterdir())
        assert HEAD in open_checkpoint(target).tensors
    assert "made this from `org/name`" in (tmp_path / "u1" / "README.md").read_text()


def test_a_link_that_leaves_the_directory_is_refused(source, tmp_path):
    (tmp_path / "secret").write_text("key")
    (source / "notes.txt").symlink_to(tmp_path / "secret")
    with pytest.raises(UnreadableInput, match="outside"):
        untie(source, tmp_path / "u", **QUICK)
    assert not (tmp_path / "u").exists()


def test_a_named_pipe_is_refused_without_blocking(source, tmp_path):
    os.mkfifo(source / "pipe")
    with pytest.raises(UnreadableInput, match="not a regular file"):
        untie(source, tmp_path / "u", **QUICK)


def test_only_the_smallest_shard_is_rewritten_and_the_others_are_linked(sharded, tmp_path):
    untie(sharded, tmp_path / "u", proof=False, durable=False, link=True)
    for i, same in ((1, True), (2, True), (3, False)):
        name = f"model-{i:05d}-of-00003.safetensors"
        assert (sharded / name).samefile(tmp_path / "u" / name) == same
    assert not (sharded / "config.json").samefile(tmp_path / "u" / "config.json")
    assert (sharded / "config.json").read_text() != (tmp_path / "u" / "config.json").read_text()


def test_a_large_head_gets_its_own_file_and_tie_removes_it(sharded, tmp_path, monkeypatch):
    monkeypatch.setattr(edits, "_OWN_FILE", 100)
    untie(sharded, tmp_path / "u", proof=False, durable=False, link=True)
    for i in (1, 2, 3):
        old, new = (f"model-{i:05d}-of-0000{n}.safetensors" for n in (3, 4))
        assert (sharded / old).samefile(tmp_path / "u" / new)
    assert open_checkpoint(tmp_path / "u").tensors[HEAD].file == "model-00004-of-00004.safetensors"
    tie(tmp_path / "u", tmp_path / "t", **QUICK)
    for path in sharded.glob("*.safetensors"):
        assert (tmp_path / "t" / path.name).read_bytes() == path.read_bytes()


def test_a_single_file_stays_one_and_a_note_names_the_flag(source, tmp_path):
    outcome = untie(source / "model.safetensors", tmp_path / "u.safetensors", **QUICK)
    assert set(open_checkpoint(tmp_path / "u.safetensors").tensors) == {EMBED, HEAD, NORM}
    assert "tie_word_embeddings: false" in outcome.notes[-1]
    assert not any(".tiebeam-" in p.name for p in tmp_path.iterdir())
    untie(source / "model.safetensors", tmp_path / "dir", **QUICK)
    assert names(tmp_path / "dir") == ["README.md", "config.json", "model.safetensors"]
    with pytest.raises(BadRequest, match="must be a directory"):
        untie(source, tmp_path / "v.safetensors", **QUICK)


def test_an_existing_model_is_replaced_only_with_force(source, tmp_path):
    untie(source, tmp_path / "u", **QUICK)
    mark = tmp_path / "u" / "LICENSE"
    mark.touch()
    with pytest.raises(BadRequest, match="exists"):
        untie(source, tmp_path / "u", **QUICK)
    assert mark.exists()
    untie(source, tmp_path / "u", force=True, proof=False)
    assert not mark.exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["source", "u"]


def test_a_flipped_bit_is_detected_and_nothing_is_written(sharded, tmp_path, monkeypatch):
    honest = os.write

    def flipping(handle, raw):
        changed = bytearray(raw)
        if len(changed) > 1000:
            changed[500] ^= 1
        return honest(handle, changed)

    monkeypatch.setattr(os, "write", flipping)
    with pytest.raises(ProofFailed, match="differs"):
        untie(sharded, tmp_path / "u", **QUICK)
    assert only_source(tmp_path)


def test_a_source_that_changes_while_read_is_detected(source, tmp_path):
    def touch_source(stage, done, total):
        if stage == "verifying" and done == total:
            os.utime(source / "model.safetensors", ns=(1, 1))

    with pytest.raises(UnreadableInput, match="changed while it was read"):
        untie(source, tmp_path / "u", proof=False, progress=touch_source)
    assert only_source(tmp_path)


def limited(source, target, limit):
    """`tiebeam untie` in a subprocess whose file size limit acts like a full disk."""
    return subprocess.run(
        [sys.executable, "-m", "tiebeam", "untie", str(source), str(target), "--no-proof"],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": SRC},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )  # fmt: skip


@pytest.mark.parametrize("limit", [100, 1000, 2500])
def test_a_full_disk_gives_one_sentence_and_leaves_no_files(source, tmp_path, limit):
    done = limited(source, tmp_path / "u", limit)
    assert done.returncode == 3
    assert "is full; free some space" in done.stderr
    assert "Traceback" not in done.stderr
    assert only_source(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_directory_gives_one_sentence(source, tmp_path):
    place = tmp_path / "locked"
    place.mkdir()
    place.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(tiebeam.TiebeamError, match="may not be written"):
        untie(source, place / "u", **QUICK)


def test_a_read_only_file_system_gives_one_sentence(source):
    with pytest.raises(tiebeam.TiebeamError, match=r"/proc/u (may not|cannot) be written"):
        untie(source, Path("/proc/u"), **QUICK)


def test_every_progress_stage_reaches_its_total(sharded, tmp_path):
    last = {}
    untie(sharded, tmp_path / "u", proof=False, progress=lambda stage, done, total: last.update({stage: (done, total)}))
    assert list(last) == ["writing and comparing", "verifying", "flushing to disk"]
    assert all(done == total for done, total in last.values())


def test_a_plan_leaves_no_files(source, tmp_path):
    plan = plan_untie(open_source(source))
    assert plan.changes
    assert only_source(tmp_path)
    execute(plan, tmp_path / "u", **QUICK)


def test_the_outcome_serializes_to_json(source, tmp_path):
    document = json.loads(json.dumps(untie(source, tmp_path / "u", **QUICK).to_dict()))
    assert document["before"]["tie"] == "shared"
    assert document["after"]["model"] == str(tmp_path / "u")
    assert document["after"]["declared"] is False
