"""Models behind fsspec URLs: memory:// here; a real S3 server in tests/peers/test_s3.py."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiebeam
from helpers.building import llama_config, table, write_model, write_sharded
from tiebeam.checkpoint import open_checkpoint
from tiebeam.checkpoint.download import download_command
from tiebeam.errors import MissingExtra, UnreadableInput


@pytest.fixture
def bucket() -> Iterator[Any]:
    import fsspec

    fs = fsspec.filesystem("memory")
    yield fs
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]


@pytest.fixture
def sharded(bucket: Any, tmp_path: Path) -> Path:
    where = write_sharded(
        tmp_path / "tiny", [{"model.embed_tokens.weight": table(0)}, {"lm_head.weight": table(1)}], llama_config()
    )
    bucket.put(str(where), "/models/tiny", recursive=True)
    return where


def test_model_behind_a_url_has_the_report_of_the_local_one(sharded: Path) -> None:
    here, there = tiebeam.inspect(sharded), tiebeam.inspect("memory://models/tiny")
    assert there.tie == here.tie == "untied"
    assert there.params == here.params
    assert [f.code for f in tiebeam.diagnose("memory://models/tiny").findings] == ["TB104"]


def test_file_and_index_behind_a_url(sharded: Path) -> None:
    for name in ("model.safetensors.index.json", "model-00001-of-00002.safetensors"):
        assert tiebeam.inspect(f"memory://models/tiny/{name}").tie == "untied"


def test_rows_are_read_by_range(sharded: Path) -> None:
    checkpoint = open_checkpoint("memory://models/tiny")
    assert np.array_equal(checkpoint.rows("lm_head.weight", 3, 5), table(1)[3:5])


def test_missing_url_does_not_exist(bucket: Any) -> None:
    with pytest.raises(UnreadableInput, match=r"^memory://nothing/at/all does not exist$"):
        open_checkpoint("memory://nothing/at/all")


def test_folder_without_weights_says_what_it_holds(bucket: Any) -> None:
    bucket.pipe("/notes/readme.md", b"text")
    with pytest.raises(UnreadableInput, match=r"memory://notes holds readme.md; expected"):
        open_checkpoint("memory://notes")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("foo://bucket/model", "foo:// is no kind of address that fsspec knows"),
        ("https://example.com/model.gguf", "cannot be read by ranges; download the file"),
        ("simplecache::memory://models/tiny", "cannot be read by ranges"),
    ],
)
def test_other_addresses_are_refused_with_a_sentence(url: str, said: str) -> None:
    with pytest.raises(UnreadableInput, match=said):
        open_checkpoint(url)


@pytest.mark.parametrize(("url", "extra"), [("s3://bucket/model", "s3"), ("gs://bucket/model", "gcs")])
def test_missing_package_is_named(url: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(MissingExtra, match=rf"pip install 'tiebeam\[{extra}\]'"):
        open_checkpoint(url)


def test_file_url_is_a_path(sharded: Path) -> None:
    assert tiebeam.inspect(sharded.as_uri()).tie == "untied"


def test_shard_name_in_an_index_cannot_leave_the_folder(bucket: Any) -> None:
    bucket.pipe("/models/bad/model.safetensors.index.json", b'{"weight_map": {"a": "../tiny/model.safetensors"}}')
    with pytest.raises(UnreadableInput, match="outside the model's directory"):
        open_checkpoint("memory://models/bad")


def test_damaged_header_behind_a_url_is_refused(bucket: Any) -> None:
    bucket.pipe("/models/bad/model.safetensors", (1 << 60).to_bytes(8, "little") + b"{}")
    with pytest.raises(UnreadableInput, match="exceeds the limit"):
        open_checkpoint("memory://models/bad")


def test_adapter_does_not_choose_the_server_that_is_asked(bucket: Any, sharded: Path, tmp_path: Path) -> None:
    from tiebeam.doctor.adapters import diagnose_adapter
    from tiebeam.doctor.examples import head_lora, write_adapter

    url = "memory://models/tiny"
    adapter = write_adapter(tmp_path, head_lora(), tied=True, base_model_name_or_path=url)
    assert "is a URL, which is read only if a person names it" in diagnose_adapter(adapter).merge
    assert diagnose_adapter(adapter, url).base is not None


def test_surgery_on_a_url_prints_a_download_command_that_runs(sharded: Path, tmp_path: Path) -> None:
    with pytest.raises(tiebeam.errors.BadRequest, match="is not a local file; download it first: python -c"):
        tiebeam.tie("memory://models/tiny", tmp_path / "out", keep="embed")
    write_model(tmp_path / "a b", {"model.embed_tokens.weight": table(0)}, llama_config(tie_word_embeddings=True))
    command, local = download_command((tmp_path / "a b").as_uri())  # a URL that another process can read
    assert local == "a%20b"
    (tmp_path / "there").mkdir()
    command = command.replace("%20", " ").replace("python -c", f"{sys.executable} -c")
    subprocess.run(command, shell=True, cwd=tmp_path / "there", check=True)
    assert tiebeam.inspect(tmp_path / "there" / "a b").tie == "shared"
