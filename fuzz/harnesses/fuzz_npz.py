"""npz archives, against numpy.load(allow_pickle=False)."""

from __future__ import annotations

import io
import warnings
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from cases import Case
from mutations import mutate_bytes
from pickle_mutations import archive, members, mutate_directory

FILE = "weights.npz"
LARGE = 1 << 18
LITERALS = (
    "0", "1", "-1", "8", "2**40", str(2**40), str(2**48), str(2**63), str(2**64), "9" * 4000, "9" * 5000,
    "None", "True",
    "1.0", "'a'", "()", "(0,)", f"(0, {2**62})", "(8, 3, 0)", "[8, 3]", "(" * 90, "'<f4'", "'>f4'", "'|O'",
    "'<U3'", "'|b1'",
    "'<f2'", "'<c8'", "'V2'", "[('a', '<f4')]", "'<M8[s]'", "'<f16'", "'nonsense'", "1e400", "__import__('os')",
    "{}",
)  # fmt: skip


def seeds() -> list[Case]:
    import numpy as np

    embed = np.arange(24, dtype=np.float32).reshape(8, 3)
    arrays: dict[str, Any] = {"embed_tokens.weight": embed, "lm_head.weight": np.asfortranarray(embed + 1)}
    mixed: dict[str, Any] = {"n": np.array(3), "e": np.zeros((0, 5)), "h": embed.astype(np.float16), "t": np.array("x")}
    found = []
    for save in (np.savez, np.savez_compressed):
        for model in (arrays, mixed):
            out = io.BytesIO()
            save(out, **model)
            found.append({FILE: out.getvalue()})
    return found


def mutate(case: Case, rng: Random) -> Case:
    raw = case[FILE]
    contents = members(raw)
    kind = rng.random()
    if not contents or kind < 0.1:
        return {FILE: mutate_bytes(raw, rng)}
    if kind < 0.3:
        return {FILE: mutate_directory(raw, rng)}
    name = rng.choice(list(contents))
    if kind < 0.85:
        contents[name] = _mutate_array(contents[name], rng)
    else:
        contents[rng.choice(("x", "x.npy", ".npy", "../a.npy", "a\n\x1b.npy", name + ".npy"))] = contents.pop(name)
    return {FILE: archive(contents, rng)}


def _mutate_array(raw: bytes, rng: Random) -> bytes:
    """Replace a literal of the header, which is a Python dictionary, and make its length fit."""
    length = int.from_bytes(raw[8:10], "little")
    text, body = raw[10 : 10 + length].decode("latin-1"), raw[10 + length :]
    match rng.randrange(8):
        case 0:
            return mutate_bytes(raw, rng)
        case 1:
            body = rng.choice((b"", body[:-1], body + b"\0", body * 2))
        case 2 | 3 | 4:
            field = rng.choice(("'descr': ", "'fortran_order': ", "'shape': "))
            before, found, after = text.partition(field)
            _, comma, rest = after.partition(", '") if "descr" in field else after.rpartition(", ")
            text = before + found + rng.choice(LITERALS) + comma + rest
        case 5:
            text = text.replace(rng.choice(("3", "8", "5", "0")), rng.choice(LITERALS))
        case 6:
            text = text.replace("False", "True") if "False" in text else text.replace("True", "False")
        case _:
            text = rng.choice(
                (text + " " * 40, text.rstrip(), text * 2, "{}", "", text + "#", text.replace("shape", "x"))
            )
    header = text.encode("latin-1", "replace")
    return raw[:8] + (len(header) % 65536).to_bytes(2, "little") + header + body


def read(directory: Path) -> object:
    from tiebeam.checkpoint import open_checkpoint
    from tiebeam.checkpoint.files import LocalFiles
    from tiebeam.checkpoint.formats.npz import read_header
    from tiebeam.doctor import diagnose
    from tiebeam.errors import TiebeamError

    checkpoint = open_checkpoint(directory / FILE)
    header = read_header(LocalFiles(directory), FILE)
    with suppress(TiebeamError):
        diagnose(directory / FILE)
    return {
        name: (list(info.shape), checkpoint.tensor(name).tobytes() if info.size <= LARGE else b"")
        for name, info in header.tensors.items()
    }


def reference(directory: Path) -> object:
    """Of the arrays that NumPy reads, those that we found; all, if we refused."""
    import numpy as np

    from tiebeam.errors import TiebeamError

    wanted: Any = None
    with suppress(TiebeamError):
        wanted = read(directory)
    with warnings.catch_warnings(action="ignore"), np.load(directory / FILE, allow_pickle=False) as loaded:
        assert loaded.files, "no tensors"
        return {
            name: (list(array.shape), np.ascontiguousarray(array).tobytes() if array.size <= LARGE else b"")
            for name in loaded.files
            if wanted is None or name in wanted
            for array in [loaded[name]]
        }
