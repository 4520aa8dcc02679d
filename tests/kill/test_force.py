"""`force` replaces an earlier output of the same kind, and refuses a directory with anything else in it."""

import json
import shutil
from pathlib import Path

import pytest

from helpers.kill_sources import SHAPE, exit_code
from tiebeam.cli import main

VERBS = {
    "tie": ["tie", "{s}/twin", "{w}/out", "--no-proof", "--quiet"],
    "untie": ["untie", "{s}/tied", "{w}/out", "--no-proof", "--quiet"],
    "doctor": ["doctor", "{s}/twin", "--fix", "--out", "{w}/out"],
    "train": ["train", "{s}/corpus", *SHAPE, "--steps=1", "--out", "{w}/out"],
    "unpack": ["unpack", "{s}/run.tbp", "{w}/out"],
    "compare": ["compare", "{s}/corpus", *SHAPE[:-2], "--steps=1", "--out", "{w}/out", "--quiet"],
}


def call(verb: str, shared: Path, work: Path, *more: str) -> int:
    return exit_code(VERBS[verb], *more, s=shared, w=work)


def contents(where: Path) -> dict[str, bytes]:
    return {p.relative_to(where).as_posix(): p.read_bytes() for p in where.rglob("*") if p.is_file()}


@pytest.mark.parametrize("verb", ["tie", "untie", "doctor", "train", "unpack"])
def test_own_output_is_replaced(verb: str, shared: Path, tmp_path: Path) -> None:
    assert call(verb, shared, tmp_path) == 0
    written = contents(tmp_path).keys()
    assert call(verb, shared, tmp_path) == 2, "without --force it is not"
    assert call(verb, shared, tmp_path, "--force") == 0
    assert contents(tmp_path).keys() == written


@pytest.mark.parametrize("stranger", ["thesis.tex", "notes/thesis.tex", ".hidden", "adapter_model.safetensors"])
@pytest.mark.parametrize("verb", ["tie", "untie", "doctor", "train", "unpack"])
def test_own_output_with_a_strangers_file_is_refused(
    verb: str, stranger: str, shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(verb, shared, tmp_path) == 0
    file = tmp_path / "out" / stranger
    file.parent.mkdir(exist_ok=True)
    file.write_text("mine")
    before = contents(tmp_path)
    capsys.readouterr()
    assert call(verb, shared, tmp_path, "--force") == 2
    assert f"holds {stranger}, which is not part of" in capsys.readouterr().err
    assert contents(tmp_path) == before


@pytest.mark.parametrize("verb", VERBS)
def test_a_model_that_is_not_of_that_kind_is_refused(
    verb: str, shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A downloaded model, a run where `tie` or `unpack` would write, an output of `tie` where `train` would."""
    for source in ("tied", "run", "corpus"):
        if (verb, source) == ("train", "run"):
            continue
        shutil.copytree(shared / source, tmp_path / "out")
        before = contents(tmp_path)
        assert call(verb, shared, tmp_path, "--force") == 2, source
        assert len(capsys.readouterr().err.strip().splitlines()) == 1
        assert contents(tmp_path) == before
        shutil.rmtree(tmp_path / "out")


@pytest.mark.parametrize("verb", VERBS)
def test_a_plain_file_is_refused(verb: str, shared: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    assert call(verb, shared, tmp_path, "--force") == 2
    assert contents(tmp_path) == {"out": b"mine"}


def test_a_comparison_with_a_strangers_file_is_refused(
    shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "out" / "tied-s0"
    shutil.copytree(shared / "run", run)
    (tmp_path / "out" / "compare.json").write_text(json.dumps({"threads": 1}))
    (run / "thesis.tex").write_text("mine")
    before = contents(tmp_path)
    assert call("compare", shared, tmp_path, "--force") == 2
    assert "holds tied-s0/thesis.tex, which is not part of" in capsys.readouterr().err
    assert contents(tmp_path) == before


def test_pack_replaces_an_artifact_and_no_other_file(shared: Path, tmp_path: Path) -> None:
    pack = ["pack", str(shared / "run"), "--out", str(tmp_path / "out.tbp")]
    main(pack)
    main([*pack, "--force"])
    (tmp_path / "out.tbp").write_text("mine")
    with pytest.raises(SystemExit, match="2"):
        main([*pack, "--force"])
    assert contents(tmp_path) == {"out.tbp": b"mine"}


def test_an_export_replaces_a_site_and_nothing_else(tmp_path: Path) -> None:
    export = ["studio", "--export", str(tmp_path / "out")]
    main(export)
    (tmp_path / "out" / "index.html").write_text("old")
    main(export)
    assert (tmp_path / "out" / "index.html").read_text() != "old"
    (tmp_path / "out" / "thesis.tex").write_text("mine")
    before = contents(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        main(export)
    assert contents(tmp_path) == before


def joint(shared: Path, work: Path, *more: str) -> None:
    main(["untie", str(shared / "run"), str(work / "twin"), "--no-proof", "--quiet"])
    text = work / "text.txt"
    text.write_text("the cat sat on the mat and the dog ran to the park. " * 60)
    main(["tie", str(work / "twin"), str(work / "out"), "--joint", "--rank=8", f"--text={text}", "--quiet", *more])


def test_joint_leaves_a_directory_named_distill_alone(shared: Path, tmp_path: Path) -> None:
    mine = tmp_path / "out.distill"
    mine.mkdir()
    (mine / "state.safetensors").write_text("mine")
    joint(shared, tmp_path)
    assert contents(mine) == {"state.safetensors": b"mine"}


def test_distilling_refuses_a_directory_that_is_not_its_state(
    shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "out.distill"
    mine.mkdir()
    (mine / "state.safetensors").write_text("mine")
    with pytest.raises(SystemExit, match="2"):
        joint(shared, tmp_path, "--distill=1e-7")
    assert "out.distill is not the state of a distillation" in capsys.readouterr().err
    assert contents(mine) == {"state.safetensors": b"mine"}
    assert not (tmp_path / "out").exists()


def test_a_finished_distillation_removes_its_state(shared: Path, tmp_path: Path) -> None:
    joint(shared, tmp_path, "--distill=1e-7")
    assert (tmp_path / "out").is_dir()
    assert not (tmp_path / "out.distill").exists()
