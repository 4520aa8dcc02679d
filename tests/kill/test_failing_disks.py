"""Full and read-only disks, parents that are files, sources that vanish: one sentence, exit code 3, nothing lost."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.kill_sources import SHAPE, exit_code
from tiebeam.doctor.examples import EMBED, HEAD, matrix, write_llama
from tiebeam.errors import UnreadableInput
from tiebeam.surgery import tie
from tiebeam.train import RunDirectory

VERBS = {
    "tie": ["tie", "{s}/twin", "{d}/out", "--no-proof", "--quiet"],
    "untie": ["untie", "{s}/tied", "{d}/out", "--no-proof", "--quiet"],
    "doctor": ["doctor", "{s}/twin", "--fix", "--out", "{d}/out"],
    "train": ["train", "{s}/corpus", *SHAPE, "--steps=3", "--save-every=1e-9", "--out", "{d}/out"],
    "compare": [
        "compare",
        "{s}/corpus",
        *SHAPE[:-2],
        "--widths=16",
        "--steps=3",
        "--bigram-steps=2",
        "--out",
        "{d}/out",
        "--quiet",
    ],
    "pack": ["pack", "{s}/run", "--out", "{d}/out"],
    "unpack": ["unpack", "{s}/run.tbp", "{d}/out"],
    "export": ["studio", "--export", "{d}/out"],
    "generate": ["generate", "{s}/run", "the cat", "--new=1", "--logits", "{d}/out"],
    "corpus": ["train", "{s}/text", "--vocab=300", *SHAPE, "--steps=1", "--out", "{s}/unused"],
}
FILLED = sorted(VERBS.keys() - {"corpus"})  # the corpus is in the cache


def call(verb: str, shared: Path, disk: Path, *more: str) -> int:
    return exit_code(VERBS[verb], *more, s=shared, d=disk)


def sentence(capsys: pytest.CaptureFixture[str]) -> str:
    """What was printed on stderr: one line."""
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("tiebeam: ")
    return line


def contents(where: Path) -> dict[str, bytes]:
    return {p.relative_to(where).as_posix(): p.read_bytes() for p in where.rglob("*") if p.is_file()}


@pytest.mark.parametrize("free", [0, 4096, 3 * 4096])
@pytest.mark.parametrize("verb", FILLED)
def test_a_full_disk_loses_nothing(
    verb: str,
    free: int,
    shared: Path,
    disk: Path,
    leave_free: Callable[[int], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = contents(shared)
    leave_free(free)
    code = call(verb, shared, disk)
    if code == 0:
        assert free > 0, "a disk without space cannot hold the result"
        return
    said = sentence(capsys)
    assert code == 3
    assert "full; free some space" in said or "free some space, or use another disk" in said
    assert contents(shared) == before
    left = {path.name for path in disk.iterdir()}
    assert left == {"filler"} or (verb in ("train", "compare") and left == {"filler", "out"})
    assert not list(disk.glob("out/.*")), "no temporary file is left"
    (disk / "filler").unlink()
    begun = (disk / "out" / "run.json").exists()
    assert call(verb, shared, disk, *(["--resume"] if begun else [])) == 0
    assert (disk / "out").exists()
    if verb == "train":
        assert RunDirectory(disk / "out").is_finished()


@pytest.mark.parametrize("verb", sorted(VERBS.keys() - {"corpus"}))
def test_a_read_only_disk_is_one_sentence(
    verb: str, shared: Path, disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    assert call(verb, shared, disk) == 3
    assert sentence(capsys).endswith("out may not be written: read-only file system")


@pytest.mark.parametrize("verb", sorted(VERBS.keys() - {"corpus"}))
def test_a_parent_that_is_a_file_is_one_sentence(
    verb: str, shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("mine")
    assert call(verb, shared, tmp_path / "file") == 3
    assert sentence(capsys).endswith("file is not a directory")
    assert call(verb, shared, tmp_path / "file" / "deep") == 3
    assert sentence(capsys).endswith("file is not a directory")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_cache_that_may_not_be_written_is_one_sentence(
    shared: Path, disk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    monkeypatch.setenv("TIEBEAM_CACHE", str(disk / "cache"))
    assert call("corpus", shared, disk) == 3
    assert "may not be written: read-only file system" in sentence(capsys)


@pytest.mark.parametrize(("verb", "source"), [("pack", "run"), ("unpack", "run.tbp"), ("train", "corpus")])
def test_a_missing_source_is_one_sentence(
    verb: str, source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(verb, tmp_path, tmp_path) == 3
    assert f"{tmp_path / source}" in sentence(capsys)


def test_a_run_whose_model_is_cut_short_is_not_packed(
    shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    subprocess.run(["cp", "-r", str(shared / "run"), str(tmp_path / "run")], check=True)
    os.truncate(tmp_path / "run" / "model.safetensors", 1000)
    assert call("pack", tmp_path, tmp_path) == 3
    assert "is damaged" in sentence(capsys)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("change", ["removed", "changed", "cut short"])
def test_a_source_that_changes_meanwhile_gives_no_target(tmp_path: Path, change: str) -> None:
    source = write_llama(tmp_path / "twin", {EMBED: matrix(0), HEAD: matrix(0)}, tie_word_embeddings=True)
    weights = source / "model.safetensors"

    def meanwhile(stage: str, done: int, total: int) -> None:
        if stage == "writing and comparing" and weights.exists():
            if change == "removed":
                weights.unlink()
            elif change == "changed":
                weights.write_bytes(weights.read_bytes()[:-1] + b"x")
            else:
                os.truncate(weights, 100)

    with pytest.raises(UnreadableInput, match=r"model\.safetensors"):
        tie(source, tmp_path / "out", proof=False, progress=meanwhile)
    assert [path.name for path in tmp_path.iterdir()] == ["twin"]
