"""Pickles that attack a loader, by category, as PyTorch files. torch.load(weights_only=True) refuses what would run.

Ours runs nothing either. It may still read the tensors beside the attack: what it cannot use is left out.
"""

from __future__ import annotations

import io
import struct
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tiebeam.checkpoint import open_checkpoint
from tiebeam.errors import UnreadableInput

TENSOR = (
    b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0" + b"0X\3\0\0\0cpuK\6tQ"
    b"K\0K\2K\3\x86K\3K\1\x86\x89ccollections\nOrderedDict\n)RtR"
)


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def attack(block: bytes) -> bytes:
    """{"evil": the value of block, "w": a tensor}"""
    return b"\x80\x02}(" + text("evil") + block + text("w") + TENSOR + b"u."


def saved(path: Path, program: bytes) -> Path:
    out = io.BytesIO()
    torch.save({"w": torch.arange(6.0).reshape(2, 3)}, out)
    with zipfile.ZipFile(out) as source, zipfile.ZipFile(path, "w") as target:
        for info in source.infolist():
            target.writestr(info, program if info.filename.endswith("data.pkl") else source.read(info))
    return path


def ours(path: Path) -> dict[str, Any]:
    checkpoint = open_checkpoint(path)
    return {name: checkpoint.tensor(name) for name in checkpoint.tensors}


RUNS = text("open('CANARY', 'w')")
TOUCH = text("touch CANARY")
CODE = {
    "a command": b"cos\nsystem\n" + TOUCH + b"\x85R",
    "a builtin": b"cbuiltins\nexec\n" + RUNS + b"\x85R",
    "a builtin under its name of Python 2": b"c__builtin__\neval\n" + RUNS + b"\x85R",
    "an attribute of an allowed module": b"ctorch\nhub.load\n" + TOUCH + b"\x85R",
    "a dotted path through an allowed module": b"\x8c\x05torch\x8c\x09os.system\x93" + TOUCH + b"\x85R",
    "a function of torch that runs code": b"ctorch.utils.collect_env\nrun\n" + TOUCH + b"\x85R",
    "a function of torch that unpickles": b"ctorch.storage\n_load_from_bytes\n" + TOUCH + b"\x85R",
    "a function of numpy that runs code": b"cnumpy.testing._private.utils\nrunstring\n" + RUNS + b"}\x86R",
    "getattr to reach what is not listed": b"cbuiltins\ngetattr\ncos\nsystem\n" + text("__call__") + b"\x86R" + TOUCH
    + b"\x85R",
    "functools.partial": b"cfunctools\npartial\ncos\nsystem\n" + TOUCH + b"\x86R)R",
    "a new object with arguments": b"csubprocess\nPopen\n" + TOUCH + b"\x85\x81",
    "a new object with keywords": b"csubprocess\nPopen\n)}" + text("args") + TOUCH + b"s\x92",
    "an instance by INST": b"(" + TOUCH + b"ios\nsystem\n",
    "an instance by OBJ": b"(cos\nsystem\n" + TOUCH + b"o",
    "state that calls": b"cbuiltins\nobject\n)\x81}" + text("__setstate__") + b"cos\nsystem\nsb" + TOUCH + b"b",
    "state on a function": b"cos\nsystem\n}" + text("__code__") + RUNS + b"sb",
    "state on a class": b"cargparse\nNamespace\n}" + text("__reduce__") + b"cos\nsystem\nsb",
    "a call in the state of a tensor": TENSOR + b"cos\nsystem\n" + TOUCH + b"\x85Rb",
    "a call as an argument of a tensor": b"ctorch._utils\n_rebuild_tensor_v2\n(cos\nsystem\n" + TOUCH
    + b"\x85RK\0)))tR",
    "a call as the factory of a defaultdict": b"ccollections\ndefaultdict\ncos\nsystem\n\x85R",
    "a call as a key": b"}cos\nsystem\n" + TOUCH + b"\x85RNs",
    "a call in a list for a set": b"cbuiltins\nset\n](cos\nsystem\n" + TOUCH + b"\x85Re\x85R",
    "a call as a persistent id": b"cos\nsystem\n" + TOUCH + b"\x85RQ",
    "a storage type that is a function": b"(" + text("storage") + b"cos\nsystem\n" + text("0") + text("cpu") + b"K\6tQ",
    "a module with its source as a persistent id": b"(" + text("module") + b"cos\nsystem\n" + TOUCH + TOUCH + b"tQ",
    "a rebuild function named in the data": b"ctorch._tensor\n_rebuild_from_type_v2\n(cos\nsystem\ncbuiltins\nstr\n"
    + TOUCH + b"\x85}tR",
    "copyreg": b"ccopyreg\n_reconstructor\n(cos\nsystem\ncbuiltins\nobject\nNtR",
    "the extension registry": b"ccopyreg\nadd_extension\n(" + text("os") + text("system") + b"K\1tR0\x82\1" + TOUCH
    + b"\x85R",
    "a pickle inside bytes": b"cpickle\nloads\nC\x04N0N.\x85R",
    "an import": b"cbuiltins\n__import__\n" + text("antigravity") + b"\x85R",
}  # fmt: skip


@pytest.mark.parametrize("category", CODE)
def test_nothing_runs(category: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    path = saved(tmp_path / "x.pt", attack(CODE[category]))
    try:
        found = ours(path)
    except UnreadableInput:
        found = {}
    assert set(found) <= {"w", "evil"}
    if "w" in found:
        np.testing.assert_array_equal(found["w"], np.arange(6, dtype=np.float32).reshape(2, 3))
    assert list(Path().iterdir()) == []
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize(
    "category",
    sorted(set(CODE) - {"a storage type that is a function", "the extension registry", "a pickle inside bytes"}),
)
def test_torch_refuses_it_too(category: str, tmp_path: Path) -> None:
    """So that the list above consists of attacks."""
    path = saved(tmp_path / "x.pt", attack(CODE[category]))
    with pytest.raises(Exception, match=r"(?i)weights.only|unsupported|trust|expected|not"):
        torch.load(path, weights_only=True)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (b"\x80\x02\x80\x02}.", None),  # a second PROTO is what pickle allows
        (b"\x80\x06}.", "the newest is 5"),
        (b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\xff}.", None),  # the length of a frame is not used
        (b"\x80\x04\x95\0\0\0\0\0\0\0\0}.", None),
        (b"\x80\x02}.cos\nsystem\nX\x01\0\0\0a\x85R.", None),  # what follows STOP is not read
        (b"\x80\x020.", "is invalid"),
        (b"\x80\x02(.", "its pickle does not end"),
        (b"\x80\x02}u.", "is invalid"),
        (b"\x80\x02]a.", "is invalid"),
        (b"\x80\x02h\x07.", "is invalid"),
        (b"\x80\x02j\xff\xff\xff\xff.", "is invalid"),
        (b"\x80\x02Nr\xff\xff\xff\xff0}.", None),
        (b"\x80\x02}\x8b\xff\xff\xff\x7f.", "is truncated"),
        (b"\x80\x02}\x8b\xff\xff\xff\xff.", "is truncated"),
        (b"\x80\x02L" + b"9" * 5000 + b"L\n0}.", "is invalid"),
        (b"\x80\x05\x97\x98" + b"0}.", None),  # an out-of-band buffer that nobody passed
        (b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\xff\xff0}.", "is truncated"),
        (b"\x80\x02\x82\x010}.", None),  # the extension registry
        (b"\x80\x02\x84\xff\xff\xff\xff0}.", None),
        (b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b"0}.", None),  # deeper than any stack
        (b"\x80\x02" + b")" + b"\x85" * 200_000 + b"0}.", None),
        (b"\x80\x02}" + b"q\0h\0" * 100_000 + b"0" * 100_000 + b".", None),
    ],
)  # fmt: skip
def test_abuse_of_the_machine_ends_in_a_value_or_one_sentence(
    program: bytes, message: str | None, tmp_path: Path
) -> None:
    path = saved(tmp_path / "x.pt", program)
    with pytest.raises(UnreadableInput, match=message or "holds no tensors") as raised:
        open_checkpoint(path)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 500


def test_zeros_in_a_shape_do_not_excuse_the_rest(tmp_path: Path) -> None:
    for shape in (b"K\0\x8a\x07" + bytes(5) + b"\x7f\x7f", b"K\0\x8a\x09" + bytes(8) + b"\1"):
        block = TENSOR.replace(b"K\2K\3\x86", shape + b"\x86", 1)
        with pytest.raises(UnreadableInput, match="no tensor can have"):
            open_checkpoint(saved(tmp_path / "x.pt", b"\x80\x02}" + text("w") + block + b"s."))


def test_more_names_than_the_limit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One tensor under many names costs a few bytes of the file each."""
    from tiebeam.checkpoint.formats.torch import state_dict

    monkeypatch.setattr(state_dict, "MAX_TORCH_TENSORS", 1000)
    names = b"".join(text(f"w{i}") + b"h\1" for i in range(1001))
    with pytest.raises(UnreadableInput, match="more tensors than the limit of 1,000"):
        open_checkpoint(saved(tmp_path / "x.pt", b"\x80\x02" + TENSOR + b"q\x010}(" + names + b"u."))


OTHER = TENSOR.replace(b"X\1\0\0\0" + b"0", b"X\1\0\0\0" + b"1")
STATE = OTHER[OTHER.index(b"((") + 1 : OTHER.index(b"\x89")]  # storage, offset, shape, strides


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (attack(b"N").replace(b"RtRu.", b"RtR(" + STATE + b"tbu."), "sets the state of a tensor"),
        (attack(TENSOR.replace(b"FloatStorage", b"IntStorage")), "the storage '0' has two element types"),
    ],
    ids=["state of a tensor", "a storage of two types"],
)
def test_what_torch_would_read_as_another_tensor_is_refused(program: bytes, message: str, tmp_path: Path) -> None:
    """torch reads both files, the first with the numbers of the state, the second with one type for both names."""
    path = saved(tmp_path / "x.pt", program)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("archive/data/1", np.arange(10, 16, dtype=np.float32).tobytes())
    assert torch.load(path, weights_only=True)["w"].shape == (2, 3)
    with pytest.raises(UnreadableInput, match=message):
        open_checkpoint(path)


def test_arguments_of_a_new_container_are_not_its_contents(tmp_path: Path) -> None:
    """NEWOBJ calls `__new__` alone, so that torch reads an empty dictionary."""
    path = saved(tmp_path / "x.pt", attack(b"ccollections\nOrderedDict\n](" + text("x") + TENSOR + b"\x86e\x85\x81"))
    assert torch.load(path, weights_only=True)["evil"] == {}
    assert list(ours(path)) == ["w"]


def test_state_that_changes_no_numbers_is_ignored(tmp_path: Path) -> None:
    """PyTorch 0.3 wrote parameters as Parameter(tensor), then (requires_grad, volatile, hooks) as its state."""
    parameter = b"ctorch.nn.parameter\nParameter\n" + TENSOR + b"\x85R(\x88\x89Ntb"
    path = saved(tmp_path / "x.pt", b"\x80\x02}" + text("w") + parameter + b"s.")
    np.testing.assert_array_equal(ours(path)["w"], np.arange(6, dtype=np.float32).reshape(2, 3))
