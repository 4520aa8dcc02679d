"""Reading files of a model: nothing hangs, leaves the directory or returns a short read."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import tiebeam
from tiebeam.checkpoint.files import LocalFiles, contained
from tiebeam.errors import UnreadableInput


@pytest.fixture
def model(tmp_path: Path) -> Path:
    where = tmp_path / "model"
    (where / "sub").mkdir(parents=True)
    (where / "a.bin").write_bytes(bytes(range(100)))
    (where / "sub" / "b.bin").write_bytes(b"inside")
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "c.bin").write_bytes(b"outside")
    return where


def test_names_are_files_and_folders_are_folders(model: Path) -> None:
    (model / "loop").symlink_to("loop")
    (model / "broken").symlink_to("nothing")
    assert LocalFiles(model).names() == ["a.bin", "broken", "loop"]
    assert LocalFiles(model).folders() == ["sub"]


def test_range_is_exactly_its_bytes(model: Path) -> None:
    files = LocalFiles(model)
    assert files.size("a.bin") == 100
    assert files.head("a.bin", 4) == (100, b"\0\1\2\3")
    assert files.head("a.bin", 1000) == (100, bytes(range(100)))
    assert files.read("a.bin", 10, 20) == bytes(range(10, 20))
    assert files.read("a.bin", 100, 100) == b""
    assert files.read("sub/b.bin", 0, 6) == b"inside"


def test_large_read_is_split_and_joined(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiebeam.checkpoint.files._MAX_READ", 7)
    assert LocalFiles(model).read("a.bin", 1, 99) == bytes(range(1, 99))


def test_reading_past_the_end_is_an_error(model: Path) -> None:
    with pytest.raises(UnreadableInput, match="ends at byte 100; 101 were expected"):
        LocalFiles(model).read("a.bin", 0, 101)


def test_file_truncated_while_it_is_read_is_an_error(model: Path) -> None:
    files = LocalFiles(model)
    assert files.size("a.bin") == 100
    os.truncate(model / "a.bin", 50)
    with pytest.raises(UnreadableInput, match="ends at byte 50; 80 were expected"):
        files.read("a.bin", 20, 80)


def test_file_removed_while_it_is_read_is_an_error(model: Path) -> None:
    files = LocalFiles(model)
    files.size("a.bin")
    (model / "a.bin").unlink()
    with pytest.raises(UnreadableInput, match="does not exist"):
        files.read("a.bin", 0, 1)


@pytest.mark.parametrize(
    "name",
    ["../secret", "sub/../../secret", "/etc/passwd", "\\\\server\\share", "..\\secret", "C:\\x", "a\0b", "", ".."],
)
def test_name_that_leaves_the_directory_is_refused(model: Path, name: str) -> None:
    with pytest.raises(UnreadableInput, match="outside the model's directory"):
        contained(name, "m")
    for reads in (LocalFiles(model).size, LocalFiles(model).path):
        with pytest.raises(UnreadableInput, match="outside the model's directory"):
            reads(name)


@pytest.mark.parametrize("name", ["qwen:7b.gguf", "a..b.bin", "..hidden", "sub/b.bin"])
def test_odd_name_that_stays_inside_is_fine(name: str) -> None:
    assert contained(name, "m") == name


@pytest.mark.parametrize("target", ["../secret", "{root}/secret", "../elsewhere/c.bin", "sub/../../secret"])
def test_link_that_leaves_the_directory_is_refused(model: Path, tmp_path: Path, target: str) -> None:
    (model / "link.bin").symlink_to(target.format(root=tmp_path))
    files = LocalFiles(model)
    for act in (lambda: files.size("link.bin"), lambda: files.read("link.bin", 0, 1), lambda: files.path("link.bin")):
        with pytest.raises(UnreadableInput, match="outside the model's directory"):
            act()


def test_folder_that_is_a_link_out_is_refused(model: Path, tmp_path: Path) -> None:
    (model / "out").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnreadableInput, match="outside the model's directory"):
        LocalFiles(model).read("out/c.bin", 0, 1)


def test_link_inside_the_directory_is_followed(model: Path) -> None:
    (model / "link.bin").symlink_to("sub/b.bin")
    assert LocalFiles(model).read("link.bin", 0, 6) == b"inside"


def test_directory_reached_through_a_link_is_read(model: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(model)
    (model / "link.bin").symlink_to("a.bin")
    assert LocalFiles(tmp_path / "alias").read("link.bin", 1, 2) == b"\1"


def test_links_of_a_cache_may_reach_its_blobs_but_nothing_beside_them(tmp_path: Path) -> None:
    repository = tmp_path / "models--o--n"
    snapshot = repository / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    (repository / "blobs" / "d1").write_bytes(b"blob")
    (repository / "other").write_bytes(b"other")
    (snapshot / "good").symlink_to("../../blobs/d1")
    (snapshot / "bad").symlink_to("../../other")
    assert LocalFiles(snapshot).read("good", 0, 4) == b"blob"
    with pytest.raises(UnreadableInput, match="outside the model's directory"):
        LocalFiles(snapshot).read("bad", 0, 4)


@pytest.mark.parametrize(("link", "message"), [("loop", "to itself"), ("gone", "does not exist")])
def test_broken_link_is_refused(model: Path, link: str, message: str) -> None:
    (model / "x").symlink_to("x" if link == "loop" else "gone")
    with pytest.raises(UnreadableInput, match=message):
        LocalFiles(model).size("x")


@pytest.mark.timeout(20)
def test_pipe_does_not_hang(model: Path) -> None:
    os.mkfifo(model / "pipe.safetensors")
    with pytest.raises(UnreadableInput, match="not a regular file"):
        LocalFiles(model).head("pipe.safetensors", 8)
    with pytest.raises(UnreadableInput, match="not a regular file"):
        LocalFiles(model).read("pipe.safetensors", 0, 8)


def test_directory_and_a_device_are_not_files(model: Path) -> None:
    with pytest.raises(UnreadableInput, match="not a regular file"):
        LocalFiles(model).size("sub")
    with pytest.raises(UnreadableInput, match="not a regular file"):
        LocalFiles(Path("/dev")).size("null")


def test_no_descriptor_stays_open(model: Path) -> None:
    files, before = LocalFiles(model), len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        files.read("a.bin", 0, 10)
        with pytest.raises(UnreadableInput):
            files.size("sub")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_missing_permission_is_reported() -> None:
    """In a subprocess of another user, because root may read everything."""
    script = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from tiebeam.checkpoint import open_checkpoint\n"
        "from tiebeam.errors import UnreadableInput\n"
        "if os.getuid() == 0: os.setuid(65534)\n"
        "for name in sys.argv[1:]:\n"
        "    try: open_checkpoint(name)\n"
        "    except UnreadableInput as error: print(error)\n"
    )
    with tempfile.TemporaryDirectory() as root:
        model = Path(root) / "model"
        closed = Path(root) / "closed"
        model.mkdir()
        closed.mkdir()
        (model / "model.safetensors").write_bytes(b"x")
        (closed / "model.safetensors").write_bytes(b"x")
        (model / "model.safetensors").chmod(0)
        closed.chmod(0)
        Path(root).chmod(0o755)
        sources = [model, model / "model.safetensors", closed, closed / "model.safetensors"]
        run = subprocess.run(
            [sys.executable, "-c", script, *map(str, sources)],
            env=os.environ | {"PYTHONPATH": str(Path(tiebeam.__file__).parents[1])},
            capture_output=True,
            text=True,
            check=True,
        )
        closed.chmod(0o700)
    lines = run.stdout.splitlines()
    assert len(lines) == len(sources), run.stderr
    for line, source in zip(lines, sources, strict=True):
        assert line.startswith(str(source))
        assert "permission denied" in line.lower()
