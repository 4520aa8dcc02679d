"""PyTorch files since 1.6 (zip), against torch.load(weights_only=True)."""

from __future__ import annotations

import io
import zipfile
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from cases import Case
from mutations import mutate_bytes
from pickle_mutations import archive, members, mutate_directory, mutate_pickle

FILE = "pytorch_model.bin"
LARGE = 1 << 18  # elements; of larger tensors only type and shape are compared


def models() -> list[Any]:
    import torch

    embed = torch.arange(24.0).reshape(8, 3)
    plain = {"model.embed_tokens.weight": embed, "lm_head.weight": embed + 1, "n": torch.tensor(3)}
    tied = {"transformer.wte.weight": embed.half(), "alias": embed.T, "part": embed[2:4, 1:], "none": torch.zeros(0, 5)}
    types = {str(d): torch.arange(4).to(d) for d in (torch.bfloat16, torch.bool, torch.uint16, torch.float8_e4m3fn)}
    nested = {"model": {"a.weight": embed, "b": torch.nn.Parameter(embed)}, "optimizer": {"state": {0: embed}}, "n": 3}
    return [plain, tied, {**types, "w": embed}, nested]


def seeds() -> list[Case]:
    import torch

    found = []
    for model in models():
        out = io.BytesIO()
        torch.save(model, out)
        found.append({FILE: out.getvalue()})
    return found


def mutate(case: Case, rng: Random) -> Case:
    raw = case[FILE]
    contents = members(raw)
    kind = rng.random()
    if contents is None or kind < 0.1:
        return {FILE: mutate_bytes(raw, rng)}
    if kind < 0.25:
        return {FILE: mutate_directory(raw, rng)}
    program = next((name for name in contents if name.endswith("data.pkl")), None)
    if program and kind < 0.9:
        contents[program] = mutate_pickle(contents[program], rng)
    elif contents:
        name = rng.choice(list(contents))
        match rng.randrange(4):
            case 0:
                del contents[name]
            case 1:
                contents[name] = mutate_bytes(contents[name], rng)
            case 2:
                contents[rng.choice(("archive/byteorder", "archive/data/9", "x/data.pkl", "../x"))] = contents.pop(name)
            case _:
                contents[name] = contents[rng.choice(list(contents))]
    return {FILE: archive(contents, rng)}


def read(directory: Path) -> object:
    from tiebeam.checkpoint import open_checkpoint
    from tiebeam.checkpoint.files import LocalFiles
    from tiebeam.checkpoint.formats.torch.reader import read_header
    from tiebeam.doctor import diagnose
    from tiebeam.errors import TiebeamError

    checkpoint = open_checkpoint(directory / FILE)
    header = read_header(LocalFiles(directory), FILE)
    with suppress(TiebeamError):
        diagnose(directory / FILE)
    prefix = header.metadata.get("tiebeam.weights_at", "")
    return {
        (f"{prefix}.{name}" if prefix else name): (
            info.dtype,
            list(info.shape),
            checkpoint.tensor(name).tobytes() if info.size <= LARGE else b"",
        )
        for name, info in header.tensors.items()
    }


def reference(directory: Path) -> object:
    """Of what torch loads, the tensors that we found; all of them if we refused the file. An archive whose table of
    contents Python's zipfile refuses counts as refused, although torch's miniz may read it."""
    import warnings

    import torch

    from tiebeam.errors import TiebeamError

    path = directory / FILE
    if path.read_bytes()[:2] == b"PK":
        zipfile.ZipFile(path).close()
    with warnings.catch_warnings(action="ignore"):
        loaded = torch.load(path, weights_only=True, map_location="cpu")
    ours: Any = {}
    with suppress(TiebeamError):
        ours = read(directory)
    found = _tensors(loaded, ours)
    assert found, "no tensors"
    return found


def one_by_one(directory: Path, ours: Any) -> object:
    """Where torch refuses the file: each tensor that we found, made by torch from its storage alone."""
    import one_by_one

    return _tensors(one_by_one.load(directory / FILE), ours)


def _tensors(root: Any, wanted: Any) -> dict[str, Any]:
    """The tensors in `root` by their dotted names: those that are wanted, or all if none is. Of several with one name
    (a name may have dots itself) the one that is wanted."""
    import one_by_one
    import torch

    found: dict[str, Any] = {}
    inner = {name[:i] for name in wanted for i, letter in enumerate(name) if letter == "."}

    def collect(value: Any, name: str, above: tuple[int, ...]) -> None:
        if isinstance(value, torch.Tensor):
            name = name or "tensor"
            if (not wanted or name in wanted) and (name not in found or found[name] != wanted.get(name)):
                found[name] = _described(value)
            return
        if id(value) in above or len(above) > 60 or (wanted and name and name not in inner):
            return
        if isinstance(value, one_by_one.Other):
            items = value.children()
        elif isinstance(value, dict | list | tuple):
            items = list(value.items() if isinstance(value, dict) else enumerate(value))
        else:
            return
        for key, item in items:
            if isinstance(key, str | int):
                text = str(key).encode("utf-8", "surrogatepass").decode("utf-8", "backslashreplace")
                collect(item, f"{name}.{text}" if name else text, (*above, id(value)))

    collect(root, "", ())
    return found


def _described(value: Any) -> Any:
    import torch

    names = {
        torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
        torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.uint16: "U16",
        torch.uint32: "U32", torch.uint64: "U64", torch.bool: "BOOL", torch.complex64: "C64", torch.complex128: "C128",
        torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
    }  # fmt: skip
    shape = list(value.shape)
    if value.numel() > LARGE:
        return names.get(value.dtype, str(value.dtype)), shape, b""
    plain = value.detach().contiguous()
    if plain.dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
        plain = plain.float()
        plain[plain.isnan()] = float("nan")  # one NaN for all
    return names.get(value.dtype, str(value.dtype)), shape, plain.numpy().tobytes()
