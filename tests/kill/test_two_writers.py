"""Two processes on one target: one of them is refused or waits, and what the other writes is whole."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from helpers.small_corpus import small_corpus
from tiebeam.compare import compare
from tiebeam.compare.comparison import base_settings
from tiebeam.corpus import Corpus
from tiebeam.doctor.examples import EMBED, HEAD, matrix, write_llama
from tiebeam.errors import BadRequest
from tiebeam.surgery import tie
from tiebeam.train import RunDirectory, Settings, train
from tiebeam.train.pack_run import pack_run


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return small_corpus(tmp_path_factory)


def settings(**changes: Any) -> Settings:
    small: dict[str, Any] = {"layers": 1, "dim": 16, "heads": 2, "kv_heads": 1, "mlp_dim": 32, "context": 16}
    return Settings(**{**small, "batch_tokens": 64, "threads": 1, "device": "cpu", "steps": 3, **changes})


@contextmanager
def busy_in_another_process(job: Callable[[Callable[[], None]], object]) -> Iterator[None]:
    """Run `job` in a child until it calls what it is given; it stays there until the block ends, then is killed."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:

        def stay() -> None:
            os.write(writer, b"x")
            signal.pause()

        job(stay)
        os._exit(1)
    try:
        os.close(writer)
        assert os.read(reader, 1) == b"x", "the child ended before it was busy"
        yield
    finally:
        os.close(reader)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_second_train_is_refused_until_the_first_has_ended(corpus: Corpus, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with busy_in_another_process(lambda stay: train(settings(), corpus, out, report=lambda record: stay())):
        before = (out / "metrics.jsonl").read_bytes()
        for resume in (True, False):
            with pytest.raises(BadRequest, match="run is in use by another process; wait until it has ended"):
                train(settings(), corpus, out, resume=resume, force=not resume)
        with pytest.raises(BadRequest, match="already holds a run"):
            train(settings(), corpus, out)
        assert (out / "metrics.jsonl").read_bytes() == before
    train(settings(), corpus, out, resume=True)
    assert RunDirectory(out).is_finished()
    assert list(tmp_path.iterdir()) == [out]


def test_a_second_comparison_is_refused_until_the_first_has_ended(corpus: Corpus, tmp_path: Path) -> None:
    base = base_settings(steps=2, layers=1, dim=16, heads=2, kv_heads=1, mlp_dim=32, context=16, batch_tokens=64,
                         threads=1, device="cpu")  # fmt: skip

    def run(**options: Any) -> None:
        compare(base, corpus, tmp_path / "out", bigram_steps=1, bigram_dim=4, **options)

    with busy_in_another_process(lambda stay: run(report=lambda run, record: stay())):
        for force in (False, True):
            with pytest.raises(BadRequest, match="out is in use by another process"):
                run(force=force)


def test_of_two_writers_of_one_target_one_is_refused(tmp_path: Path) -> None:
    source = write_llama(tmp_path / "twin", {EMBED: matrix(0), HEAD: matrix(0)}, tie_word_embeddings=True)
    tie(source, tmp_path / "expected", proof=False)

    def meanwhile(stage: str, done: int, total: int) -> None:
        if stage == "verifying" and not (tmp_path / "out").exists():
            tie(source, tmp_path / "out", proof=False)

    with pytest.raises(BadRequest, match="out appeared while the result was written"):
        tie(source, tmp_path / "out", proof=False, progress=meanwhile)
    written, expected = ({p.name: p.read_bytes() for p in (tmp_path / n).iterdir()} for n in ("out", "expected"))
    assert written == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == ["expected", "out", "twin"]


def test_without_hard_links_files_are_copied_and_renamed(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: Any, **__: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    source = write_llama(tmp_path / "twin", {EMBED: matrix(0), HEAD: matrix(0)}, tie_word_embeddings=True)
    tie(source, tmp_path / "out", link=True, proof=False)
    assert (tmp_path / "out" / "model.safetensors").stat().st_nlink == 1
    train(settings(), corpus, tmp_path / "run")
    pack_run(tmp_path / "run", tmp_path / "run.tbp")
    with pytest.raises(BadRequest, match="exists"):
        pack_run(tmp_path / "run", tmp_path / "run.tbp")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run", "run.tbp", "twin"]
