"""How models are listed: one line each, with a name that says which model it is."""

from __future__ import annotations

from helpers.studio_files import tiny_llama
from helpers.tiny_llama_gguf import write_llama_gguf
from tiebeam.studio.model_list import ModelList


def gguf(where):
    where.mkdir(parents=True)
    return write_llama_gguf(where / f"{where.name}-1B.gguf")


def test_a_directory_with_one_gguf_has_the_name_of_the_file_too(tmp_path):
    file = gguf(tmp_path / "downloads")
    (named,) = ModelList((str(tmp_path / "downloads"),)).models()
    assert named.name == "downloads/downloads-1B.gguf"
    assert named.where == str(tmp_path / "downloads")
    (below,) = ModelList((), tmp_path).models()
    assert below.name == named.name
    assert below.id == named.id
    (alone,) = ModelList((str(file),)).models()
    assert alone.name == "downloads-1B.gguf"


def test_other_directories_have_their_own_name(tmp_path):
    tiny_llama(tmp_path / "plain")
    gguf(tmp_path / "several")
    write_llama_gguf(tmp_path / "several" / "other.gguf")
    assert [one.name for one in ModelList((), tmp_path).models()] == [
        "plain",
        "several/other.gguf",
        "several/several-1B.gguf",
    ]
