"""PyTorch files of both layouts are read as torch reads them, and hostile or damaged ones are refused."""

from __future__ import annotations

import argparse
import collections
import io
import json
import pickle
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.mangling import mangled, survives
from tiebeam.checkpoint import Checkpoint, open_checkpoint
from tiebeam.checkpoint.files import LocalFiles
from tiebeam.checkpoint.formats.torch import reader, state_dict
from tiebeam.errors import UnreadableInput

SRC = Path(reader.__file__).parents[4]
DTYPE_NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ", torch.float8_e8m0fnu: "F8_E8M0",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8",
    torch.uint16: "U16", torch.uint32: "U32", torch.uint64: "U64", torch.bool: "BOOL",
    torch.complex64: "C64", torch.complex128: "C128",
}  # fmt: skip
FORMATS = pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])


class Tiny(torch.nn.Module):
    """A tiny language model with a tied head, a persistent buffer and a non-persistent one."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(10, 4)
        self.body = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
        self.head = torch.nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("kept", torch.ones(3))
        self.register_buffer("transient", torch.ones(3), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.embed(tokens)))


def saved(path: Path, value: Any, zipped: bool = True) -> Checkpoint:
    torch.save(value, path, _use_new_zipfile_serialization=zipped)
    return open_checkpoint(path)


def numbers(tensor: torch.Tensor) -> np.ndarray:
    """The expected array: the same type if NumPy has it, float32 otherwise."""
    spelled = DTYPE_NAMES[tensor.dtype]
    return (tensor.float() if spelled == "BF16" or spelled.startswith("F8") else tensor.detach()).numpy()


def assert_reads_as_torch(checkpoint: Checkpoint, state: dict[str, torch.Tensor]) -> None:
    assert list(checkpoint.tensors) == list(state)
    for name, tensor in state.items():
        info = checkpoint.tensors[name]
        assert (info.shape, info.dtype) == (tuple(tensor.shape), DTYPE_NAMES[tensor.dtype])
        np.testing.assert_array_equal(checkpoint.tensor(name), numbers(tensor), strict=True)


def repacked(path: Path, method: int = zipfile.ZIP_STORED, **replaced: bytes) -> bytes:
    """The same archive with some members replaced (by the end of their names), or deflated."""
    out = io.BytesIO()
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(out, "w", method) as new:
        for name in old.namelist():
            new.writestr(name, replaced.get(name.split("/", 1)[1].replace(".", "_"), old.read(name)))
    return out.getvalue()


@FORMATS
@pytest.mark.parametrize("dtype", DTYPE_NAMES, ids=DTYPE_NAMES.values())
def test_every_element_type_equals_torch(tmp_path: Path, dtype: torch.dtype, zipped: bool) -> None:
    raw = torch.arange(2 * 16 * 16, dtype=torch.int64).to(torch.uint8)
    tensor = (raw % 2).bool() if dtype is torch.bool else raw.view(dtype).clone()
    state = {"whole": tensor, "matrix": tensor[: tensor.numel() // 4 * 4].reshape(-1, 4)}
    assert_reads_as_torch(saved(tmp_path / "x.pt", state, zipped), state)


@st.composite
def views(draw: st.DrawFn) -> torch.Tensor:
    """A random view of a small tensor: sliced, transposed, strided, repeated or empty."""
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.float8_e5m2, torch.complex64]))
    size = int(np.prod(shape, dtype=np.int64))
    tensor = torch.arange(size).to(torch.float32).to(dtype).reshape(shape)
    for axis in range(tensor.ndim):
        start = draw(st.integers(0, tensor.shape[axis]))
        tensor = tensor[(slice(None),) * axis + (slice(start, None, draw(st.integers(1, 3))),)]
    tensor = tensor.permute(draw(st.permutations(range(tensor.ndim))))
    if draw(st.booleans()):
        tensor = tensor.unsqueeze(0).expand(draw(st.integers(1, 3)), *tensor.shape)
    return tensor


@settings(max_examples=80, deadline=None)
@given(tensors=st.dictionaries(st.text(max_size=8), views(), min_size=1, max_size=4), zipped=st.booleans())
def test_any_view_equals_torch(
    tmp_path_factory: pytest.TempPathFactory, tensors: dict[str, torch.Tensor], zipped: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "views.pt"
    assert_reads_as_torch(saved(path, tensors, zipped), tensors)


@FORMATS
def test_one_storage_under_two_names_is_one_byte_range(tmp_path: Path, zipped: bool) -> None:
    state = Tiny().state_dict()
    checkpoint = saved(tmp_path / "x.bin", {**state, "copy": state["embed.weight"].clone()}, zipped)
    embed, head, copy = (checkpoint.tensors[name] for name in ("embed.weight", "head.weight", "copy"))
    assert embed.storage == head.storage
    assert embed.storage != copy.storage
    assert embed.strides is None


@FORMATS
def test_view_of_part_of_a_storage_is_that_part(tmp_path: Path, zipped: bool) -> None:
    fused = torch.arange(24.0).reshape(6, 4)
    state = {"all": fused, "rows": fused[2:4], "turned": fused.T, "columns": fused[:, 1:3]}
    checkpoint = saved(tmp_path / "x.pt", state, zipped)
    whole, rows, turned, columns = (checkpoint.tensors[name] for name in state)
    assert (rows.begin - whole.begin, rows.nbytes, rows.strides) == (2 * 16, 2 * 16, None)
    assert turned.storage == whole.storage
    assert turned.strides == (1, 4)
    assert (columns.begin - whole.begin, columns.end - whole.begin, columns.strides) == (4, 23 * 4, (4, 1))
    assert_reads_as_torch(checkpoint, state)
    np.testing.assert_array_equal(checkpoint.rows("turned", 1, 3), fused.T[1:3].numpy())


def test_deflated_members_are_read_too(tmp_path: Path) -> None:
    state = Tiny().state_dict()
    torch.save(state, tmp_path / "x.pt")
    (tmp_path / "y.pt").write_bytes(repacked(tmp_path / "x.pt", zipfile.ZIP_DEFLATED))
    checkpoint = open_checkpoint(tmp_path / "y.pt")
    assert checkpoint.tensors["embed.weight"].packing == "x/data/1"
    assert checkpoint.tensors["embed.weight"].storage == checkpoint.tensors["head.weight"].storage
    assert_reads_as_torch(checkpoint, state)


@pytest.mark.parametrize("protocol", range(2, 6))
def test_every_pickle_protocol_is_read(tmp_path: Path, protocol: int) -> None:
    state = Tiny().state_dict()
    for zipped in (True, False):
        torch.save(state, tmp_path / "x.pt", pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)
        assert_reads_as_torch(open_checkpoint(tmp_path / "x.pt"), state)


def constant(step: int) -> float:
    return 1.0


def training_run(model: Tiny) -> dict[str, Any]:
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.arange(8)).sum().backward()
    optimizer.step()
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, constant)
    return {
        "epoch": 3,
        "args": argparse.Namespace(lr=0.1, betas=(0.9, 0.95), device=torch.device("cpu"), dtype=torch.bfloat16),
        "optimizer": optimizer.state_dict(),
        "the_trainer": {
            "opt": optimizer,
            "hook": constant,
            "schedule": schedule,
            "path": Path("x"),
            "shape": torch.Size([1, 2]),
        },
        "lr_scheduler": schedule.state_dict(),
        "rng_state": torch.get_rng_state(),
        "losses": collections.deque([0.1, 0.2]),
        "per_class": collections.defaultdict(list, {"a": [1]}),
        "array": np.ones((2, 2)),
    }


@FORMATS
@pytest.mark.parametrize("key", ["state_dict", "model", "model_state_dict", "module", "net", "my_transformer"])
def test_weights_are_found_inside_a_training_checkpoint(tmp_path: Path, key: str, zipped: bool) -> None:
    model = Tiny()
    checkpoint = saved(tmp_path / "x.ckpt", {**training_run(model), key: model.state_dict()}, zipped)
    assert_reads_as_torch(checkpoint, model.state_dict())
    assert checkpoint.metadata["tiebeam.weights_at"] == key
    assert checkpoint.notes == (f"the weights are under {key!r} in x.ckpt",)


def test_flat_state_dict_needs_no_note(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path / "x.bin", Tiny().state_dict())
    assert "tiebeam.weights_at" not in checkpoint.metadata
    assert checkpoint.notes == ()


@pytest.mark.parametrize("average", ["ema", "model_ema", "ema_state_dict"])
def test_weights_are_preferred_to_their_average(tmp_path: Path, average: str) -> None:
    model, averaged = Tiny(), Tiny()
    checkpoint = saved(
        tmp_path / "x.pt",
        {average: {**averaged.state_dict(), "extra.w": torch.ones(2, 2)}, "model": model.state_dict()},
    )
    assert checkpoint.metadata["tiebeam.weights_at"] == "model"
    assert f"{average!r} ignored" in checkpoint.notes[0]
    assert_reads_as_torch(checkpoint, model.state_dict())
    alone = saved(tmp_path / "x.pt", {average: averaged.state_dict(), "model": {"tiny.w": torch.ones(2, 2)}})
    assert alone.metadata["tiebeam.weights_at"] == average


def test_optimizer_larger_than_the_model_is_not_chosen(tmp_path: Path) -> None:
    big = {"state": {0: {"exp_avg": torch.ones(50, 50)}}, "param_groups": [{"lr": 1}], "flat.w": torch.ones(50, 50)}
    for key in ("optimizer", "optimizer_state_dict", "optim", "opt", "optimizer_states", "d_optimizer", "whatever"):
        checkpoint = saved(tmp_path / "x.pt", {key: big, "model": {"layer.weight": torch.ones(2, 2)}})
        assert list(checkpoint.tensors) == ["layer.weight"]


def test_parts_of_a_model_in_nested_dictionaries_are_joined(tmp_path: Path) -> None:
    parts = {
        "language_model": {
            "embedding": {"word_embeddings": {"weight": torch.ones(8, 4)}},
            "encoder": {"layers.0.weight": torch.ones(4, 4)},
        }
    }
    checkpoint = saved(tmp_path / "x.pt", {"iteration": 7, "model": parts})
    assert list(checkpoint.tensors) == [
        "language_model.embedding.word_embeddings.weight",
        "language_model.encoder.layers.0.weight",
    ]
    tree: dict[str, Any] = {
        "model": {"embed": {"weight": torch.ones(8, 4)}},
        "lm_head": {"weight": torch.ones(8, 4)},
        "layers": [{"w": torch.ones(4, 4)}, {"w": torch.ones(4, 4)}],
    }
    checkpoint = saved(tmp_path / "x.pt", tree)
    assert set(checkpoint.tensors) == {"model.embed.weight", "lm_head.weight", "layers.0.w", "layers.1.w"}


def test_two_tensors_with_the_same_dotted_name_are_refused(tmp_path: Path) -> None:
    torch.save({"a": {"b": torch.ones(2, 2)}, "a.b": torch.zeros(2, 2)}, tmp_path / "x.pt")
    with pytest.raises(UnreadableInput, match=r"both called 'a\.b'"):
        open_checkpoint(tmp_path / "x.pt")


@FORMATS
@pytest.mark.filterwarnings("ignore")
def test_whole_pickled_module_gives_the_names_of_its_state_dict(tmp_path: Path, zipped: bool) -> None:
    model = Tiny()
    for value, at in ((model, None), ({"epoch": 1, "model": model}, "model"), (argparse.Namespace(net=model), "net")):
        checkpoint = saved(tmp_path / "x.pt", value, zipped)
        assert set(checkpoint.tensors) == set(model.state_dict())
        assert checkpoint.metadata.get("tiebeam.weights_at") == at
        assert checkpoint.tensors["embed.weight"].storage == checkpoint.tensors["head.weight"].storage
        np.testing.assert_array_equal(checkpoint.tensor("embed.weight"), model.embed.weight.detach().numpy())
    wrapped = saved(tmp_path / "x.pt", torch.nn.DataParallel(model), zipped)
    assert set(wrapped.tensors) == {f"module.{name}" for name in model.state_dict()}


@pytest.mark.filterwarnings("ignore")
def test_layer_with_two_parents_has_both_names(tmp_path: Path) -> None:
    layer = torch.nn.Linear(3, 3)
    model = torch.nn.ModuleDict({"a": torch.nn.Sequential(layer), "b": torch.nn.Sequential(layer)})
    checkpoint = saved(tmp_path / "x.pt", model)
    assert set(checkpoint.tensors) == set(model.state_dict())
    assert checkpoint.tensors["a.0.weight"].storage == checkpoint.tensors["b.0.weight"].storage


@pytest.mark.filterwarnings("ignore")
def test_torchscript_archives_are_read(tmp_path: Path) -> None:
    model = Tiny().eval()
    torch.jit.save(torch.jit.script(model), tmp_path / "x.pt")
    checkpoint = open_checkpoint(tmp_path / "x.pt")
    assert set(model.state_dict()) <= set(checkpoint.tensors)
    assert checkpoint.tensors["embed.weight"].storage == checkpoint.tensors["head.weight"].storage
    for name, tensor in model.state_dict().items():
        np.testing.assert_array_equal(checkpoint.tensor(name), tensor.numpy())


def test_parameters_and_buffers_saved_as_such_are_tensors(tmp_path: Path) -> None:
    parameter = torch.nn.Parameter(torch.ones(2, 2))
    parameter.note = "an attribute"
    state = {"parameter": parameter, "buffer": torch.nn.Buffer(torch.zeros(2, 2)), "scalar": torch.tensor(3.0)}
    assert_reads_as_torch(saved(tmp_path / "x.pt", state), state)


@FORMATS
@pytest.mark.filterwarnings("ignore")
def test_tensors_that_are_not_plain_bytes_are_skipped_with_a_note(tmp_path: Path, zipped: bool) -> None:
    strange = {
        "quantized by PyTorch": torch.quantize_per_tensor(torch.ones(2, 2), 0.1, 0, torch.qint8),
        "sparse": torch.eye(3).to_sparse(),
        "on the meta device, without numbers": torch.empty(2, 2, device="meta"),
        "a conjugated or negated view": torch.ones(2, 2, dtype=torch.complex64).conj(),
        "of the element type torch.complex32": torch.ones(2, 2).to(torch.complex32),
    }
    for reason, tensor in strange.items():
        checkpoint = saved(tmp_path / "x.pt", {"odd": tensor, "weight": torch.ones(2, 2)}, zipped)
        assert list(checkpoint.tensors) == ["weight"]
        assert checkpoint.notes == (f"1 of the tensors in x.pt were skipped: 'odd' is {reason}",)
        with pytest.raises(UnreadableInput, match=f"no plain tensors: 'odd' is {reason}"):
            saved(tmp_path / "x.pt", {"odd": tensor}, zipped)


def test_file_without_tensors_says_so(tmp_path: Path) -> None:
    torch.save(argparse.Namespace(lr=1), tmp_path / "x.pt")
    with pytest.raises(UnreadableInput, match="holds no tensors"):
        open_checkpoint(tmp_path / "x.pt")


def test_bare_tensor_is_called_tensor(tmp_path: Path) -> None:
    assert_reads_as_torch(saved(tmp_path / "x.pt", torch.ones(2, 3)), {"tensor": torch.ones(2, 3)})


def test_sharded_model_is_joined_through_its_index(tmp_path: Path) -> None:
    state = Tiny().state_dict()
    names = list(state)
    index: dict[str, str] = {}
    for i, part in enumerate((names[:3], names[3:]), 1):
        shard = f"pytorch_model-0000{i}-of-00002.bin"
        torch.save({name: state[name] for name in part}, tmp_path / shard)
        index |= dict.fromkeys(part, shard)
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": index}))
    assert_reads_as_torch(open_checkpoint(tmp_path), state)


def test_torch_is_not_imported(tmp_path: Path) -> None:
    torch.save(training_run(Tiny()) | {"model": Tiny().state_dict()}, tmp_path / "x.pt")
    code = (
        "import sys; from tiebeam.checkpoint import open_checkpoint;"
        f"c = open_checkpoint({str(tmp_path / 'x.pt')!r}); c.tensor('embed.weight'); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(SRC)}, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_header_is_read_without_the_numbers(tmp_path: Path) -> None:
    torch.save({f"w{i}": torch.zeros(1 << 18) for i in range(20)}, tmp_path / "x.pt")  # 20 MB

    class Counting(LocalFiles):
        fetched = 0

        def read(self, name: str, begin: int, end: int) -> bytes:
            self.fetched += end - begin
            return super().read(name, begin, end)

    files = Counting(tmp_path)
    assert len(reader.read_header(files, "x.pt").tensors) == 20
    assert files.fetched < 100_000


class Command:
    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        import os

        return os.system, (f"touch {self.canary}",)


@FORMATS
def test_command_in_the_pickle_is_not_run(tmp_path: Path, zipped: bool) -> None:
    canary = tmp_path / "canary"
    state = {**Tiny().state_dict(), "payload": Command(canary)}
    checkpoint = saved(tmp_path / "x.bin", state, zipped)
    assert "embed.weight" in checkpoint.tensors
    assert "payload" not in checkpoint.tensors
    assert not canary.exists()
    torch.load(tmp_path / "x.bin", weights_only=False)
    assert canary.exists()  # the trap was real


def test_plain_pickle_is_refused_and_not_run(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    for protocol in range(2, 6):
        (tmp_path / "x.bin").write_bytes(pickle.dumps({"a": Command(canary)}, protocol))
        with pytest.raises(UnreadableInput, match="plain Python pickle"):
            open_checkpoint(tmp_path / "x.bin")
    assert not canary.exists()


def test_other_file_types_are_named_in_the_error(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    for raw, message in (
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "git lfs pull"),
        (b"\0" * 257 + b"ustar" + b"\0" * 300, "save it again"),
        (b"<!doctype html><html>", "not a PyTorch file"),
        (b"", "not a PyTorch file"),
    ):
        path.write_bytes(raw)
        with pytest.raises(UnreadableInput, match=message):
            open_checkpoint(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("some/other.txt", "text")
    with pytest.raises(UnreadableInput, match=r"torch\.save instead"):
        open_checkpoint(path)


def test_big_endian_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch.save({"a": torch.ones(2, 2)}, path)
    path.write_bytes(repacked(path, byteorder=b"big"))
    with pytest.raises(UnreadableInput, match="big-endian"):
        open_checkpoint(path)
    torch.save({"a": torch.ones(2, 2)}, path, _use_new_zipfile_serialization=False)
    raw = path.read_bytes()
    at = raw.index(b"little_endian") + len(b"little_endianq\x02")
    assert raw[at] == 0x88
    path.write_bytes(raw[:at] + b"\x89" + raw[at + 1 :])
    with pytest.raises(UnreadableInput, match="big-endian"):
        open_checkpoint(path)


def pickled(numel: object = 6, offset: object = 0, shape: object = (2, 3), strides: object = (3, 1)) -> bytes:
    """The pickle of {"w": a float32 tensor}, with any of its fields replaced."""

    class Storage:
        pass

    class Rebuilt:
        def __reduce__(self) -> tuple[Any, ...]:
            hooks: dict[str, Any] = collections.OrderedDict()
            return torch._utils._rebuild_tensor_v2, (Storage(), offset, shape, strides, False, hooks)

    class Pickler(pickle.Pickler):
        def persistent_id(self, value: object) -> object:
            return ("storage", torch.FloatStorage, "0", "cpu", numel) if isinstance(value, Storage) else None

    out = io.BytesIO()
    Pickler(out, 2).dump({"w": Rebuilt()})
    return out.getvalue()


@pytest.mark.parametrize(
    ("claims", "message"),
    [
        ({"numel": 7}, "should have 28 bytes; the file holds 24"),
        (
            {"numel": 1 << 40, "shape": (1 << 20, 1 << 20), "strides": (1 << 20, 1)},
            "should have 4,398,046,511,104 bytes",
        ),
        ({"numel": 1 << 60}, "an impossible number of bytes"),
        ({"numel": -1}, "an impossible number of bytes"),
        ({"numel": "6"}, "an impossible number of bytes"),
        ({"offset": 1}, r"elements 1\.\.7 of a storage that has 6"),
        ({"offset": -1}, "that no tensor can have"),
        ({"offset": None}, "that no tensor can have"),
        ({"shape": (3, 3)}, r"elements 0\.\.9 of"),
        ({"shape": (2, -3)}, "that no tensor can have"),
        ({"shape": (2, True)}, "that no tensor can have"),
        ({"shape": (2,)}, "that no tensor can have"),
        ({"shape": [2, 3]}, "that no tensor can have"),
        ({"strides": (3, 2)}, r"elements 0\.\.8 of"),
        ({"strides": (-3, 1)}, "that no tensor can have"),
        ({"shape": (1 << 40, 3), "strides": (0, 1)}, "expands 3 stored elements to"),
        ({"shape": (0, 1 << 47, 1 << 47), "strides": (0, 0, 0)}, "that no tensor can have"),
        ({"shape": (1,) * 70, "strides": (1,) * 70}, "that no tensor can have"),
    ],
)
def test_tensor_that_does_not_fit_its_storage_is_refused(tmp_path: Path, claims: dict[str, Any], message: str) -> None:
    path = tmp_path / "x.pt"
    torch.save({"w": torch.ones(2, 3)}, path)
    path.write_bytes(repacked(path, data_pkl=pickled()))
    assert_reads_as_torch(open_checkpoint(path), {"w": torch.ones(2, 3)})
    path.write_bytes(repacked(path, data_pkl=pickled(**claims)))
    with pytest.raises(UnreadableInput, match=message):
        open_checkpoint(path)


def test_storage_that_is_missing_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch.save({"w": torch.ones(2, 3)}, path)
    out = io.BytesIO()
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            if not name.endswith("data/0"):
                new.writestr(name, old.read(name))
    path.write_bytes(out.getvalue())
    with pytest.raises(UnreadableInput, match="the storage '0', which is missing"):
        open_checkpoint(path)


def test_pickle_above_the_size_limit_is_not_inflated(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch.save({"w": torch.ones(2, 3)}, path)
    path.write_bytes(repacked(path, zipfile.ZIP_DEFLATED, data_pkl=bytes(70 << 20)))
    assert path.stat().st_size < 1 << 20
    with pytest.raises(UnreadableInput, match="a pickle of 73,400,320 bytes"):
        open_checkpoint(path)


def test_exponentially_nested_dictionaries_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch.save({"w": torch.ones(2, 3)}, path)
    module = (
        b"}(X\x0b\x00\x00\x00_parameters}X\x08\x00\x00\x00_modules}(X\x01\x00\x00\x00ah\x01X\x01\x00\x00\x00bh\x01uu"
    )
    program = b"\x80\x02ca\nB\n)\x81q\x01" + (b"ca\nB\n)\x81" + module + b"bq\x01") * 40 + b"."
    path.write_bytes(repacked(path, data_pkl=program))
    with pytest.raises(UnreadableInput, match="refusing to read"):
        open_checkpoint(path)


REPEATED = {
    "a set of": b"c__builtin__\nset\nh\x01\x85R0",
    "a size of": b"ctorch\nSize\nh\x02\x85R0",
    "a mapping of": b"ccollections\nOrderedDict\nh\x01\x85R0",
    "a shape of": b"ctorch._utils\n_rebuild_tensor_v2\n(NK\x00h\x02h\x02\x89NtR0",
    "sparse with": b"ctorch._utils\n_rebuild_sparse_tensor\nNh\x02\x86R0",
    "a storage of": b"h\x02Q0",
    "a call with": b"ctorch._utils\n_rebuild_tensor_v2\nh\x02R0",
    "an instance of": b"ccopyreg\n_reconstructor\nh\x02\x85R0",
}


@pytest.mark.parametrize("mention", REPEATED.values(), ids=REPEATED)
def test_large_value_referenced_often_is_not_copied(
    tmp_path: Path, mention: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_dict, "MAX_PICKLE_VISITS", 500_000)
    path = tmp_path / "x.pt"
    torch.save({"w": torch.ones(2, 3)}, path)
    large = b"](" + b"N" * 100_000 + b"eq\x010(" + b"N" * 100_000 + b"tq\x020"
    kept = mention.removesuffix(b"0") + b"a"
    path.write_bytes(repacked(path, data_pkl=large + b"]" + kept * 5_000 + b"."))
    tracemalloc.start()
    try:
        with pytest.raises(UnreadableInput, match=r"no (plain )?tensors|refusing to read"):
            open_checkpoint(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 30 << 20  # a copy each would be four gigabytes


def test_long_names_cannot_multiply(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch.save({"w": torch.ones(2, 3)}, path)
    with zipfile.ZipFile(path) as archive:
        tensor = archive.read("x/data.pkl").removeprefix(b"\x80\x02").removesuffix(b".")
    name = b"X" + (1000).to_bytes(4, "little") + b"k" * 1000
    wide = b"}(" + b"".join(b"X\x04\x00\x00\x00%04xh\xff" % i for i in range(5000)) + b"u"
    program = tensor + b"q\xff0" + (b"}" + name) * 45 + wide + b"s" * 45 + b"."
    path.write_bytes(repacked(path, data_pkl=program))
    with pytest.raises(UnreadableInput, match="refusing to read"):
        open_checkpoint(path)


def test_module_that_contains_itself_ends(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    model = Tiny()
    model.body[0].__dict__["_modules"]["parent"] = model
    torch.save(model, path)
    assert "embed.weight" in open_checkpoint(path).tensors


@FORMATS
def test_truncated_file_is_refused_at_every_length(tmp_path: Path, zipped: bool) -> None:
    path = tmp_path / "x.pt"
    torch.save({"w": torch.ones(2, 3), "v": torch.ones(3)}, path, _use_new_zipfile_serialization=zipped)
    raw = path.read_bytes()
    for length in range(0, len(raw), 7):
        assert not survives(path, raw[:length])


@pytest.fixture(scope="module")
def small_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("small") / "x.pt"
    fused = torch.arange(12.0).reshape(3, 4)
    state = {"embed.weight": fused, "head.weight": fused, "t": fused.T, "b": torch.ones(3, dtype=torch.bfloat16)}
    torch.save({"model": state, "args": argparse.Namespace(a=1), "f8": torch.ones(2).to(torch.float8_e5m2)}, path)
    return path


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED], ids=["stored", "deflated"])
def test_damaged_archive_ends_in_a_result_or_one_sentence(small_file: Path, tmp_path: Path, method: int) -> None:
    path = tmp_path / "y.pt"
    raw = small_file.read_bytes() if method == zipfile.ZIP_STORED else repacked(small_file, method)
    outcomes = {survives(path, damaged) for damaged in mangled(raw, 600, seed=method)}
    assert outcomes == {True, False}


def test_damaged_pickle_in_a_sound_archive_ends_in_a_result_or_one_sentence(small_file: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(small_file) as archive:
        program = archive.read("x/data.pkl")
    path = tmp_path / "y.pt"
    outcomes = [survives(path, repacked(small_file, data_pkl=damaged)) for damaged in mangled(program, 600, seed=5)]
    assert set(outcomes) == {True, False}


def test_damaged_legacy_file_ends_in_a_result_or_one_sentence(small_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "y.pt"
    torch.save(torch.load(small_file, weights_only=False), path, _use_new_zipfile_serialization=False)
    outcomes = {survives(path, damaged) for damaged in mangled(path.read_bytes(), 600, seed=6)}
    assert outcomes == {True, False}
