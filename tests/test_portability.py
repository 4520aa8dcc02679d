"""The core without what only POSIX has, and with the names that Windows and macOS treat in their own way.

Whole test files run in a subprocess with tests/helpers/hidden_posix.py. docs/reliability.md says what was run where.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tiebeam
from helpers.building import llama_config, table, write_model
from helpers.exfat_disk import exfat_disk
from helpers.windows_locks import MSVCRT
from tiebeam._fs import check_target, lock, staging, targets, write_text
from tiebeam.checkpoint import files
from tiebeam.errors import BadRequest, UnreadableInput

TESTS = Path(__file__).parent
EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
# inspect, doctor, tie, untie, extend, merge; locks, staging and reading below them
CORE = [
    "test_fs.py", "checkpoint/test_files.py", "checkpoint/test_open.py", "checkpoint/write", "cli/test_inspect.py",
    "cli/test_doctor.py", "cli/test_doctor_inputs.py", "cli/test_surgery.py", "cli/test_extend.py", "cli/test_trim.py",
    "cli/test_merge.py",
    "doctor/test_fix.py", "surgery/test_states.py", "surgery/test_writing_out.py", "surgery/test_merge_bases.py",
]  # fmt: skip
# What these state holds only where the system has hard links, or swaps two directories at once: without them files are
# copied, and a kill between three renames is put right by the next run (test_fs.py).
NEED_POSIX = (
    "surgery/test_writing_out.py::test_only_the_smallest_shard_is_rewritten_and_the_others_are_linked",
    "surgery/test_writing_out.py::test_a_large_head_gets_its_own_file_and_tie_removes_it",
    "surgery/test_merge_bases.py::test_shards_of_16_bits_are_within_rounding_and_the_others_are_linked",
)


def pytest_without_posix(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{TESTS.parent / 'src'}{os.pathsep}{TESTS}"}
    command = [sys.executable, "-m", "pytest", "-p", "helpers.hidden_posix", "-n", "0", *arguments]
    return subprocess.run(command, cwd=TESTS.parent, env=environment, capture_output=True, text=True)


@pytest.mark.slow
def test_locks_staging_and_files_work_without_posix_functions() -> None:
    done = pytest_without_posix("tests/test_fs.py", "tests/checkpoint/test_files.py")
    assert done.returncode == 0, done.stdout


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
def test_the_core_works_without_posix_functions() -> None:
    done = pytest_without_posix(
        *(f"tests/{name}" for name in CORE),
        "-m",
        "not exhaustive and not peer and not real",
        *(f"--deselect=tests/{name}" for name in NEED_POSIX),
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_no_module_of_the_core_needs_a_posix_module_to_be_imported() -> None:
    program = """
import importlib, pkgutil, helpers.hidden_posix, tiebeam
for package in ("_fs", "checkpoint", "families", "inspection", "doctor", "surgery", "tokenizer", "decode", "cli"):
    for module in pkgutil.walk_packages(importlib.import_module(f"tiebeam.{package}").__path__, f"tiebeam.{package}."):
        if not module.name.endswith((".hook", ".transformers", ".module")):
            importlib.import_module(module.name)
print("imported")
"""
    environment = {**os.environ, "PYTHONPATH": f"{TESTS.parent / 'src'}{os.pathsep}{TESTS}"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == "imported", done.stderr


@pytest.fixture
def windows_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "_HAS_FLOCK", False)
    monkeypatch.setattr(lock, "_HAS_MSVCRT", True)
    monkeypatch.setattr(lock, "import_module", lambda name: MSVCRT)


@pytest.mark.usefixtures("windows_locks")
def test_lock_beside_a_directory_excludes_others_follows_a_rename_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    held = lock.lock_directory(tmp_path / "run")
    assert held is not None
    assert lock.lock_directory(tmp_path / "run") is None
    (tmp_path / "run").rename(tmp_path / "moved")
    assert not held.current
    held.follow(tmp_path / "moved")
    assert held.current
    assert lock.lock_directory(tmp_path / "moved") is None
    held.release()
    assert [path.name for path in tmp_path.iterdir()] == ["moved"]


# Names


@pytest.mark.parametrize("name", ["NUL", "con", "aux.safetensors", "sub/COM1.bin", "lpt3 .json", "w.bin:stream", "C:w"])
def test_names_that_windows_takes_for_a_device_are_not_opened_there(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_WINDOWS", True)
    with pytest.raises(UnreadableInput, match="refusing to read"):
        files.contained(name, "index.json")
    for good in ("model.safetensors", "console.json", "comet.bin", "nullable/w.bin", "com10.bin"):
        assert files.contained(good, "index.json") == good


@pytest.mark.parametrize("shard", ["..\\other\\w.safetensors", "\\\\server\\share\\w", "C:\\w", "sub\\..\\..\\w"])
def test_backslashes_in_a_name_inside_a_model_cannot_leave_it(shard: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(f'{{"weight_map": {{"a": {shard!r}}}}}'.replace("'", '"'))
    with pytest.raises(UnreadableInput, match="outside the model's directory"):
        tiebeam.inspect(tmp_path)


def test_file_with_a_backslash_in_its_name_is_one_file(tmp_path: Path) -> None:
    where = write_model(tmp_path / "m", {EMBED: table(0)}, llama_config(tie_word_embeddings=True))
    (where / "notes\\here.txt").write_text("x")
    tiebeam.untie(where, tmp_path / "out")
    assert tiebeam.inspect(tmp_path / "out").tie == "twin"


@pytest.mark.parametrize("name", ["m" * 255, "模" * 85])
def test_target_with_the_longest_name_that_a_disk_allows(name: str, tmp_path: Path) -> None:
    where = write_model(tmp_path / "m", {EMBED: table(0)}, llama_config(tie_word_embeddings=True))
    tiebeam.untie(where, tmp_path / name)
    assert tiebeam.inspect(tmp_path / name).tie == "twin"
    write_text(tmp_path / f"{name[:-1]}", "a file")
    assert {path.name for path in tmp_path.iterdir()} == {"m", name, name[:-1]}


def test_model_in_a_long_path(tmp_path: Path) -> None:
    """Longer than Windows' 260 characters."""
    deep = tmp_path.joinpath(*["d" * 100] * 6)
    where = write_model(deep / "m", {EMBED: table(0)}, llama_config(tie_word_embeddings=True))
    tiebeam.untie(where, deep / "out")
    assert tiebeam.inspect(deep / "out").tie == "twin"


def test_target_inside_the_source_under_another_spelling_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A case-insensitive disk has two spellings of one directory; here a link is the second, and is not resolved."""
    (tmp_path / "model").mkdir()
    (tmp_path / "MODEL").symlink_to("model")
    monkeypatch.setattr(targets.os.path, "realpath", lambda path: os.fspath(path))
    with pytest.raises(BadRequest, match="is inside the source"):
        check_target(tmp_path / "model", tmp_path / "MODEL" / "out", force=False)
    with pytest.raises(BadRequest, match="is the source itself"):
        check_target(tmp_path / "model", tmp_path / "MODEL", force=False)
    with pytest.raises(BadRequest, match="name a target that does not contain it"):
        check_target(tmp_path / "MODEL" / "sub", tmp_path / "model", force=False)


@pytest.fixture
def exfat(tmp_path: Path) -> Iterator[Path]:
    with exfat_disk(tmp_path / "exfat") as disk:
        yield disk


def test_other_spellings_of_source_and_target_on_a_disk_that_ignores_case(exfat: Path) -> None:
    source = write_model(exfat / "deep" / "m", {EMBED: table(0)}, llama_config(tie_word_embeddings=True))
    for target, refused in (
        ("deep/M", "is the source itself"),
        ("deep/M/out", "is inside the source"),
        ("DEEP/m/out", "is inside the source"),
        ("Deep", "name a target that does not contain it"),
    ):
        for force in (False, True):
            with pytest.raises(BadRequest, match=refused):
                tiebeam.untie(source, exfat / target, force=force)
    tiebeam.untie(exfat / "DEEP" / "M", exfat / "Out")
    with pytest.raises(BadRequest, match="exists; choose another name"):
        tiebeam.untie(source, exfat / "OUT")
    tiebeam.untie(source, exfat / "OUT", force=True)
    assert tiebeam.inspect(exfat / "out").tie == "twin"
    tiebeam.tie(exfat / "oUT", exfat / "back")
    assert tiebeam.inspect(exfat / "BACK").tie == "shared"
    assert sorted(path.name.lower() for path in exfat.iterdir()) == ["back", "deep", "out"]
    assert tiebeam.inspect(source).tie == "shared"


def test_empty_target_directory_is_replaced_where_rename_refuses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows' rename fails if the target exists, even an empty directory."""
    rename = Path.rename

    def strict(self: Path, target: Path) -> Path:
        if Path(target).exists():
            raise FileExistsError(target)
        return rename(self, target)

    monkeypatch.setattr("tiebeam._fs.stage._WINDOWS", True)
    monkeypatch.setattr(Path, "rename", strict)
    (tmp_path / "out").mkdir()
    with staging(tmp_path / "out") as stage:
        (stage.path / "w").touch()
        stage.commit()
    assert (tmp_path / "out" / "w").exists()
