"""The border of the readers: what nobody foresaw becomes one sentence that asks for a report."""

import pytest

from tiebeam import errors
from tiebeam.errors import BadRequest, UnreadableInput, reader, reader_border


@pytest.fixture
def as_users_run(monkeypatch):
    monkeypatch.delenv("TIEBEAM_TRACEBACK")


def test_unforeseen_exception_asks_for_a_report(as_users_run):
    with (
        pytest.raises(
            UnreadableInput, match=r"m.gguf cannot be read: KeyError\('x'\); this is a bug .* report it"
        ) as caught,
        reader_border("m.gguf"),
    ):
        dict[str, int]()["x"]
    assert isinstance(caught.value.__cause__, KeyError)
    assert "\n" not in str(caught.value)


def test_memory_error_is_named(as_users_run):
    with pytest.raises(UnreadableInput, match="needs more memory"), reader_border("m.gguf"):
        raise MemoryError


def test_foreseen_error_passes(as_users_run):
    with pytest.raises(BadRequest, match="as it was"), reader_border("m.gguf"):
        raise BadRequest("as it was")


def test_in_tests_the_exception_itself_is_raised():
    with pytest.raises(KeyError), reader_border("m.gguf"):
        dict[str, int]()["x"]


def test_interrupt_passes(as_users_run):
    with pytest.raises(KeyboardInterrupt), reader_border("m.gguf"):
        raise KeyboardInterrupt


def test_decorated_reader_names_its_first_argument(as_users_run):
    @reader
    def read(path):
        raise ValueError("a\nb")

    with pytest.raises(UnreadableInput, match=r"^model/ cannot be read: ValueError\('a"):
        read("model/")


@pytest.mark.parametrize("broken", ["open_checkpoint", "inspect", "diagnose", "open_engine"])
def test_every_reader_has_the_border(tmp_path, monkeypatch, as_users_run, broken):
    import tiebeam
    from tiebeam.checkpoint.files import LocalFiles
    from tiebeam.decode import open_engine

    def names(self):
        raise ZeroDivisionError

    monkeypatch.setattr(LocalFiles, "names", names)
    entry = open_engine if broken == "open_engine" else getattr(tiebeam, broken)
    with pytest.raises(errors.UnreadableInput, match=r"ZeroDivisionError.*please report it"):
        entry(tmp_path)
