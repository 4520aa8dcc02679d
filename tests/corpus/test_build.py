"""build_corpus: exact counts, the cache, interruptions, shards from elsewhere."""

from __future__ import annotations

import io
import json
import os
import shutil
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import sentencepiece
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tiebeam.corpus import (
    PYTHON,
    Batches,
    Corpus,
    bits_per_byte,
    build,
    build_corpus,
    cache_directory,
    encode_shards,
    every_target,
    is_corpus,
    open_corpus,
    text_sources,
)
from tiebeam.errors import BadRequest, UnreadableInput

VERSE = "The beam that ties the roof at either end,\nholds both walls fast, and neither wall will bend.\n"


def texts(count: int) -> list[str]:
    return [f"Document {number}. {VERSE * (1 + number % 5)}" for number in range(count)]


def write_jsonl(path: Path, documents: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": document}) + "\n" for document in documents))
    return path


def decoded(corpus: Corpus, split: str) -> list[str]:
    return [corpus.tokenizer.decode(tokens) for tokens in getattr(corpus, split).documents(corpus.boundary)]


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch) -> Path:
    directory = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("TIEBEAM_CACHE", str(directory))
    return directory


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=2, max_size=12, unique=True))
def test_decoding_restores_every_document_and_every_byte_is_counted(tmp_path_factory, documents: list[str]) -> None:
    directory = tmp_path_factory.mktemp("any")
    corpus = build_corpus(
        [write_jsonl(directory / "a.jsonl", documents)], directory / "out", vocab=300, val_fraction=0.3
    )
    train, val = decoded(corpus, "train"), decoded(corpus, "val")
    assert sorted(train + val) == sorted(documents)
    assert [text for text in documents if text in val] == val  # in the order of the source
    for split, texts_of_split in (("train", train), ("val", val)):
        size = len("".join(texts_of_split).encode())
        stream = getattr(corpus, split)
        assert getattr(corpus, f"bytes_{split}") == size
        assert getattr(corpus, f"documents_{split}") == len(texts_of_split)
        assert sum(corpus.bytes_of(y.ravel(), x.ravel()) for x, y in every_target(stream, 4, 16)) == size
        assert corpus.bytes_per_token[stream.read(0, len(stream))].sum() == size


def test_sources_of_different_kinds_can_be_combined(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "rows.jsonl", texts(40))
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "note.md").write_text("# Notes on roofs\n" * 9)
    (folder / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")
    (folder / "latin.txt").write_bytes("Dächer".encode("latin-1"))
    corpus = build_corpus([tmp_path / "rows.jsonl", folder], tmp_path / "out", vocab=300)
    assert sorted(decoded(corpus, "train") + decoded(corpus, "val")) == sorted([*texts(40), "# Notes on roofs\n" * 9])
    assert corpus.manifest["skipped"] == {"binary": 1, "not UTF-8": 1}
    assert "skipped 1 binary, 1 not UTF-8" in corpus.notes


def test_a_named_file_that_is_not_text_is_an_error_and_leaves_no_files(tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes("Dächer".encode("latin-1"))
    with pytest.raises(UnreadableInput, match=r"latin\.txt is not UTF-8 \(byte 1\)"):
        build_corpus([tmp_path / "latin.txt"], tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["latin.txt"]


def test_the_tokenizer_is_trained_on_the_train_split_only(tmp_path: Path) -> None:
    documents = [f"{'abcdefgh' if number % 2 else 'zyxwvuts'} {number} " * 30 for number in range(40)]
    corpus = build_corpus([write_jsonl(tmp_path / "a.jsonl", documents)], tmp_path / "one", vocab=400, val_fraction=0.3)
    train = write_jsonl(tmp_path / "train.jsonl", decoded(corpus, "train"))
    from tiebeam.corpus.training_tokenizer import train_bpe

    assert train_bpe((json.loads(line)["text"] for line in train.open()), 400).raw == corpus.tokenizer.raw


def test_adding_a_document_does_not_change_the_split_of_others(tmp_path: Path) -> None:
    before = build_corpus([write_jsonl(tmp_path / "a.jsonl", texts(60))], tmp_path / "one", vocab=300, val_fraction=0.2)
    more = ["a new one " * 9, *reversed(texts(60))]
    after = build_corpus([write_jsonl(tmp_path / "b.jsonl", more)], tmp_path / "two", vocab=300, val_fraction=0.2)
    assert set(decoded(before, "val")) <= set(decoded(after, "val"))
    assert set(decoded(before, "train")) <= set(decoded(after, "train"))


def test_a_single_document_is_split_with_a_note(tmp_path: Path) -> None:
    (tmp_path / "input.txt").write_text(VERSE * 2000)
    corpus = build_corpus([tmp_path / "input.txt"], tmp_path / "out", vocab=300, val_fraction=0.1)
    assert decoded(corpus, "train")[0] + decoded(corpus, "val")[0] == VERSE * 2000
    assert corpus.bytes_val == pytest.approx(0.1 * len(VERSE) * 2000, rel=0.01)
    assert any("one document" in note for note in corpus.notes)
    assert (corpus.documents_train, corpus.documents_val) == (1, 1)


def test_max_bytes_is_exact(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", texts(500))
    corpus = build_corpus([path], tmp_path / "out", vocab=300, max_bytes=5000, val_fraction=0.3)
    assert corpus.bytes_train + corpus.bytes_val == 5000
    whole = [text for text in texts(500) if text in decoded(corpus, "train") + decoded(corpus, "val")]
    assert whole == texts(500)[: len(whole)]
    assert len("".join(whole)) <= 5000 < len("".join(texts(500)[: len(whole) + 1]))


def test_files_after_max_bytes_are_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in "abc":
        (folder / f"{name}.txt").write_text(name * 1000)
    first = build_corpus([folder], tmp_path / "out", vocab=257, max_bytes=1500)
    assert first.manifest["examined"] == 2
    (folder / "c.txt").write_text("z" * 1000)  # beyond max_bytes: still the same corpus
    assert build_corpus([folder], tmp_path / "out", vocab=257, max_bytes=1500).cached


def test_the_default_corpus_is_deterministic(tmp_path: Path, cache: Path) -> None:
    corpus = build_corpus(vocab=512, max_bytes=300_000)
    assert corpus.path.is_relative_to(cache / "corpus")
    assert corpus.manifest["sources"] == [PYTHON]
    assert corpus.vocab == 512
    assert corpus.bytes_train + corpus.bytes_val > 299_990
    again = build_corpus([PYTHON], tmp_path / "again", vocab=512, max_bytes=300_000)
    assert contents(again.path).keys() == contents(corpus.path).keys()
    for name, raw in contents(corpus.path).items():
        assert raw == contents(again.path)[name], name


def test_an_equal_call_opens_the_existing_corpus(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", texts(50))
    first = build_corpus([path], vocab=300)
    stages = []
    second = build_corpus([path], vocab=300, progress=lambda *report: stages.append(report))
    assert (first.cached, second.cached, stages) == (False, True, [])
    assert second.path == first.path
    assert second.to_dict() | {"cached": False} == first.to_dict()


@pytest.mark.parametrize("change", ["content", "setting", "name", "tokens"])
def test_any_difference_triggers_a_new_build(tmp_path: Path, change: str) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", texts(50))
    first = build_corpus([path], vocab=300)
    asked: dict[str, Any] = {"vocab": 300}
    if change == "content":
        path.write_bytes(path.read_bytes().replace(b"beam", b"team"))  # as many bytes as before
    elif change == "setting":
        asked["vocab"] = 301
    elif change == "name":
        path = path.rename(tmp_path / "b.jsonl")
    else:
        shard = next(first.path.glob("train_*.bin"))
        shard.write_bytes(shard.read_bytes()[:-2])
    assert not build_corpus([path], **asked).cached


def test_a_rebuild_replaces_only_a_corpus(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", texts(50))
    build_corpus([path], tmp_path / "out", vocab=300)
    assert build_corpus([path], tmp_path / "out", vocab=310).vocab == 310
    (tmp_path / "out" / "thesis.txt").write_text("years of work")
    with pytest.raises(BadRequest, match=r"holds thesis\.txt, which is not part of a corpus"):
        build_corpus([path], tmp_path / "out", vocab=320)
    with pytest.raises(BadRequest, match="is not a directory"):
        build_corpus([path], path, vocab=320)
    assert (tmp_path / "out" / "thesis.txt").read_text() == "years of work"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "out"]


def test_a_corpus_stored_inside_its_source_directory_is_not_read_as_text(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", texts(50))
    build_corpus([tmp_path], tmp_path / "out", vocab=300)
    assert build_corpus([tmp_path], tmp_path / "out", vocab=300).cached


def test_a_file_that_changes_between_two_passes_stops_the_build(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(VERSE * 9)

    def change_file(stage: str, done: int, total: int) -> None:
        if stage == "reading":
            os.utime(tmp_path / "a.txt", ns=(0, 0))

    with pytest.raises(UnreadableInput, match="changed while it was being read"):
        build_corpus([tmp_path / "a.txt"], tmp_path / "out", vocab=300, progress=change_file)
    assert not (tmp_path / "out").exists()


class InterruptedBuild(Exception):
    pass


def interrupt(after: int):
    """A progress callback that interrupts the build at its n-th batch of tokens."""
    seen = []

    def report(stage: str, done: int, total: int) -> None:
        if stage == "tokenising":
            seen.append(done)
            if len(seen) == after:
                raise InterruptedBuild

    return report


@pytest.fixture
def small_batches(monkeypatch) -> None:
    monkeypatch.setattr(encode_shards, "_BATCH_CHARACTERS", 2000)
    monkeypatch.setattr(encode_shards, "SECONDS_BETWEEN_CHECKPOINTS", -1.0)


@pytest.mark.parametrize("after", [1, 2, 7])
@pytest.mark.parametrize("damage", [None, "garbage", "lost", "state"])
def test_a_resumed_build_gives_the_same_corpus(tmp_path: Path, small_batches, after: int, damage) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", texts(120))
    asked: dict[str, Any] = {"vocab": 300, "val_fraction": 0.2, "shard_tokens": 1000}
    whole = build_corpus([path], tmp_path / "whole", **asked)
    with pytest.raises(InterruptedBuild):
        build_corpus([path], tmp_path / "out", **asked, progress=interrupt(after))
    assert not (tmp_path / "out").exists()
    partial = tmp_path / ".out.partial"
    if damage == "garbage":
        for split in ("train", "val"):
            with max(partial.glob(f"{split}_*.bin")).open("ab") as handle:
                handle.write(b"\xff" * 64)
    elif damage == "lost":
        next(partial.glob("train_*.bin")).unlink()
    elif damage == "state":
        (partial / "state.json").write_text('{"key"')
    reports: list[tuple[str, int]] = []
    resumed = build_corpus(
        [path], tmp_path / "out", **asked, progress=lambda stage, done, _: reports.append((stage, done))
    )
    stages = {stage for stage, _ in reports}
    assert contents(resumed.path) == contents(whole.path)
    assert ("training the tokenizer" in stages) == (damage == "state")
    if damage in (None, "garbage") and after > 1:
        assert next(done for stage, done in reports if stage == "tokenising") > 2000 * after * 0.9
    assert not partial.exists()


def test_an_interrupted_build_of_another_text_is_discarded(tmp_path: Path, small_batches) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", texts(60))
    with pytest.raises(InterruptedBuild):
        build_corpus([path], tmp_path / "out", vocab=300, progress=interrupt(3))
    path.write_text(path.read_text().replace("beam", "team"))
    corpus = build_corpus([path], tmp_path / "out", vocab=300)
    assert contents(corpus.path) == contents(build_corpus([path], tmp_path / "whole", vocab=300).path)


def test_a_killed_build_leaves_no_corpus_and_no_lock(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", texts(60))
    program = f"""
import os, tiebeam.corpus as corpus
corpus.encode_shards._BATCH_CHARACTERS = 2000
seen = []
def die(stage, done, total):
    seen.append(stage)
    if seen.count("tokenising") == 3:
        os.kill(os.getpid(), 9)
corpus.build_corpus([{str(path)!r}], {str(tmp_path / "out")!r}, vocab=300, progress=die)
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(text_sources.__file__).parents[2])}
    assert subprocess.run([sys.executable, "-c", program], env=environment, check=False).returncode == -9
    assert not is_corpus(tmp_path / "out")
    assert contents(build_corpus([path], tmp_path / "out", vocab=300).path) == contents(
        build_corpus([path], tmp_path / "whole", vocab=300).path
    )


def test_a_second_build_of_the_same_corpus_waits_for_the_first(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", texts(60))
    started, released, waited = threading.Event(), threading.Event(), threading.Event()

    def slow(stage: str, done: int, total: int) -> None:
        started.set()
        released.wait(30)

    def second(stage: str, done: int, total: int) -> None:
        assert stage == "waiting for another build of this corpus"
        waited.set()
        released.set()

    results: list[Corpus] = []
    first = threading.Thread(
        target=lambda: results.append(build_corpus([path], tmp_path / "out", vocab=300, progress=slow))
    )
    first.start()
    started.wait(30)
    corpus = build_corpus([path], tmp_path / "out", vocab=300, progress=second)
    first.join()
    assert waited.is_set()
    assert (results[0].cached, corpus.cached) == (False, True)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.jsonl", "out"]


def test_progress_reaches_the_total(tmp_path: Path, small_batches) -> None:
    reports: list[tuple[str, int, int]] = []
    corpus = build_corpus(
        [write_jsonl(tmp_path / "a.jsonl", texts(60))], vocab=300, progress=lambda *report: reports.append(report)
    )
    size = corpus.bytes_train + corpus.bytes_val
    for stage in ("training the tokenizer", "tokenising"):
        done = [done for name, done, total in reports if name == stage and total == size]
        assert done == sorted(done)
        assert done[-1] == size


def test_the_tokenizer_is_trained_on_an_even_sample_of_a_large_text(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [f"aaab{number} " * 20 for number in range(200)] + ["zzzy " * 30] * 200)
    learned: list[str] = []

    from tiebeam.corpus.training_tokenizer import train_bpe

    def train_and_record(texts, vocab):
        learned.extend(texts)
        return train_bpe(learned, vocab)

    with mock.patch.object(build, "train_bpe", train_and_record):
        corpus = build_corpus([path], vocab=300, tokenizer_bytes=8000)
    assert 6000 < sum(len(text) for text in learned) <= 8000
    share = sum(text.startswith("aaab") for text in learned) / len(learned)
    assert 0.3 < share < 0.7
    assert corpus.bytes_train > 40_000


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"vocab": 256}, "vocab=256 is too small; use at least 257"),
        ({"val_fraction": 0.0}, "val_fraction=0.0 is not between"),
        ({"val_fraction": 1.0}, "val_fraction=1.0 is not between"),
        ({"max_bytes": 0}, "max_bytes=0 is too small"),
        ({"max_bytes": 1}, "max_bytes=1 is too small"),
    ],
)
def test_invalid_settings_raise_bad_request(tmp_path: Path, asked: dict, sentence: str) -> None:
    with pytest.raises(BadRequest, match=sentence):
        build_corpus([write_jsonl(tmp_path / "a.jsonl", texts(9))], **asked)


def test_sources_without_text_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"\0\1")
    (tmp_path / "b.txt").write_bytes(b"")
    with pytest.raises(UnreadableInput, match=r"these sources hold no text \(skipped 1 binary, 1 empty\)"):
        build_corpus([tmp_path])


def test_a_given_tokenizer_is_used_and_stored(tmp_path: Path) -> None:
    first = build_corpus([write_jsonl(tmp_path / "a.jsonl", texts(50))], tmp_path / "first", vocab=300)
    second = build_corpus(
        [write_jsonl(tmp_path / "b.jsonl", [*texts(20), "日本語"])],
        tmp_path / "second",
        tokenizer=first.path / "tokenizer.json",
    )
    assert second.tokenizer.raw == first.tokenizer.raw
    assert sorted(decoded(second, "train") + decoded(second, "val")) == sorted([*texts(20), "日本語"])


@pytest.fixture(scope="module")
def sentencepiece_model() -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts(9)),
        model_writer=model,
        vocab_size=300,
        model_type="bpe",
        byte_fallback=True,
        minloglevel=2,
    )
    return model.getvalue()


def test_a_lossy_tokenizer_is_noted_and_bytes_are_those_of_the_text(tmp_path: Path, sentencepiece_model) -> None:
    (tmp_path / "spm.model").write_bytes(sentencepiece_model)  # its default normalizer folds white space
    corpus = build_corpus([write_jsonl(tmp_path / "a.jsonl", texts(50))], tokenizer=tmp_path / "spm.model")
    assert corpus.bytes_train + corpus.bytes_val == len("".join(texts(50)).encode())
    assert any("changes this text" in note for note in corpus.notes)


def golf_directory(directory: Path, model: bytes) -> dict[str, list[list[int]]]:
    """parameter-golf's layout: a BOS before each document, uint16 shards, and the sentencepiece model."""
    directory.mkdir()
    (directory / "fineweb_300_bpe.model").write_bytes(model)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    ids = [processor.encode(text) for text in texts(6)]
    shards = {"val_000000": ids[:2], "train_000000": ids[2:4], "train_000001": ids[4:]}
    for name, documents in shards.items():
        tokens = [token for document in documents for token in (processor.bos_id(), *document)]
        header = struct.pack("<256i", 20240520, 1, len(tokens), *[0] * 253)
        (directory / f"fineweb_{name}.bin").write_bytes(header + struct.pack(f"<{len(tokens)}H", *tokens))
    return shards


def test_parameter_golf_directories_are_corpora(tmp_path: Path, sentencepiece_model: bytes) -> None:
    shards = golf_directory(tmp_path / "golf", sentencepiece_model)
    corpus = build_corpus([tmp_path / "golf"])
    assert (corpus.vocab, corpus.boundary) == (300, 1)
    train = [document.tolist() for document in corpus.train.documents(1)]
    assert train == shards["train_000000"] + shards["train_000001"]
    assert (corpus.documents_train, corpus.documents_val) == (4, 2)
    folded = [" ".join(text.split()) for text in texts(6)]
    assert corpus.bytes_val == len("".join(folded[:2]))  # the text after the model's normalizer
    assert corpus.bytes_train == len("".join(folded[2:]))
    x, y = next(Batches(corpus.train, 2, 16))
    assert (x[:, 1:] == y[:, :-1]).all()


def test_shards_without_a_tokenizer_need_one(tmp_path: Path, sentencepiece_model: bytes) -> None:
    golf_directory(tmp_path / "golf", sentencepiece_model)
    (tmp_path / "golf" / "fineweb_300_bpe.model").rename(tmp_path / "elsewhere.model")
    with pytest.raises(BadRequest, match="has 0 tokenizers; set tokenizer to the one"):
        open_corpus(tmp_path / "golf")
    assert open_corpus(tmp_path / "golf", tmp_path / "elsewhere.model").vocab == 300
    (tmp_path / "golf" / "fineweb_val_000000.bin").unlink()
    with pytest.raises(UnreadableInput, match=r"no \*val_\*\.bin shards"):
        open_corpus(tmp_path / "golf", tmp_path / "elsewhere.model")


def test_tokens_outside_the_vocabulary_are_an_error_when_read(tmp_path: Path, sentencepiece_model: bytes) -> None:
    golf_directory(tmp_path / "golf", sentencepiece_model)
    small = build_corpus([write_jsonl(tmp_path / "a.jsonl", texts(50))], tmp_path / "small", vocab=260)
    corpus = open_corpus(tmp_path / "golf", small.path)
    with pytest.raises(UnreadableInput, match="outside the vocabulary of 260"):
        _ = corpus.bytes_val


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda directory: (directory / "corpus.json").write_text("{"), "not valid JSON"),
        (lambda directory: (directory / "corpus.json").write_text("{}"), "not the manifest of a corpus"),
        (lambda directory: (directory / "corpus.json").write_text('{"format": "tiebeam corpus 1"}'), "is damaged"),
        (lambda directory: (directory / "train_000000.bin").unlink(), "cannot be read"),
        (
            lambda directory: shutil.copy(directory / "val_000000.bin", directory / "train_000000.bin"),
            "train tokens but its shards have",
        ),
        (lambda directory: (directory / "tokenizer.json").unlink(), "tokenizer.json cannot be read"),
    ],
)
def test_a_damaged_corpus_is_an_error(tmp_path: Path, damage, sentence: str) -> None:
    build_corpus([write_jsonl(tmp_path / "a.jsonl", texts(50))], tmp_path / "out", vocab=300)
    damage(tmp_path / "out")
    with pytest.raises(UnreadableInput, match=sentence):
        open_corpus(tmp_path / "out")


def test_a_manifest_cannot_name_files_outside_its_directory(tmp_path: Path) -> None:
    corpus = build_corpus([write_jsonl(tmp_path / "a.jsonl", texts(50))], tmp_path / "out", vocab=300)
    shutil.copytree(corpus.path, tmp_path / "other")
    manifest = json.loads((corpus.path / "corpus.json").read_text())
    manifest["train"]["shards"][0]["file"] = "../other/train_000000.bin"
    (corpus.path / "corpus.json").write_text(json.dumps(manifest))
    (corpus.path / "train_000000.bin").unlink()
    with pytest.raises(UnreadableInput, match=r"out/train_000000\.bin cannot be read"):
        open_corpus(corpus.path)


def test_bits_per_byte_of_a_uniform_model(tmp_path: Path) -> None:
    corpus = build_corpus([write_jsonl(tmp_path / "a.jsonl", texts(50))], vocab=300)
    targets = len(corpus.val) - 1
    expected = np.log2(corpus.vocab) * targets / corpus.bytes_val
    assert bits_per_byte(float(np.log(corpus.vocab)), targets, corpus.bytes_val) == pytest.approx(expected)


def test_the_cache_directory_follows_the_environment(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TIEBEAM_CACHE", "~/mine")
    assert cache_directory() == Path.home() / "mine"
    monkeypatch.delenv("TIEBEAM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "tiebeam"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/void")
    assert cache_directory() == Path.home() / ".cache" / "tiebeam"


def test_importing_the_corpus_package_imports_nothing_heavy() -> None:
    heavy = ("torch", "pyarrow", "sentencepiece", "tokenizers")
    program = f"import sys, tiebeam.corpus; print([name for name in {heavy} if name in sys.modules])"
    environment = {**os.environ, "PYTHONPATH": str(Path(text_sources.__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
