"""torch distributed checkpoints (DCP), and one PyTorch file per rank. There is no reference: torch unpickles them."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path
from random import Random

from cases import Case, load
from harnesses import fuzz_torch_zip
from mutations import mutate_bytes, mutate_json
from pickle_mutations import archive, members, mutate_directory, mutate_pickle

FILE = ""
CONFIG = b'{"model_type": "llama", "vocab_size": 8, "hidden_size": 4, "tie_word_embeddings": false}'


def seeds() -> list[Case]:
    import torch
    from torch.distributed import checkpoint as dcp

    embed = torch.arange(32.0).reshape(8, 4)
    model = {"model.embed_tokens.weight": embed, "lm_head.weight": embed.bfloat16(), "n": torch.tensor(3)}
    found = []
    for saved in (model, {"model": model, "optimizer": {"state": {"a": embed.clone()}}}):
        with tempfile.TemporaryDirectory() as where:
            dcp.save(saved, checkpoint_id=where, no_dist=True)
            found.append({**load(Path(where), ""), "config.json": CONFIG})
    return [*found, _chunked(embed), _rank_files(embed)]


def _chunked(embed: object) -> Case:
    """One tensor in four chunks, in two files."""
    import io
    import pickle

    import torch
    from torch.distributed.checkpoint.filesystem import _StorageInfo
    from torch.distributed.checkpoint.metadata import (
        ChunkStorageMetadata,
        Metadata,
        MetadataIndex,
        TensorProperties,
        TensorStorageMetadata,
    )

    assert isinstance(embed, torch.Tensor)
    files: dict[str, bytes] = {"__0_0.distcp": b"", "__1_0.distcp": b""}
    storage, chunks, name = {}, [], "model.embed_tokens.weight"
    for r, c in ((0, 0), (0, 2), (4, 0), (4, 2)):
        out, file = io.BytesIO(), f"__{r // 4}_0.distcp"
        torch.save(embed[r : r + 4, c : c + 2].clone(), out)
        offsets = torch.Size((r, c))
        storage[MetadataIndex(name, offsets)] = _StorageInfo(file, len(files[file]), out.tell())
        chunks.append(ChunkStorageMetadata(offsets, torch.Size((4, 2))))
        files[file] += out.getvalue()
    entry = TensorStorageMetadata(TensorProperties(torch.float32), torch.Size((8, 4)), chunks)
    return {**files, ".metadata": pickle.dumps(Metadata({name: entry}, None, storage)), "config.json": CONFIG}


def _rank_files(embed: object) -> Case:
    """A DTensor over two ranks; torch's fake process group plays both."""
    import io

    import torch
    from torch import distributed
    from torch.distributed.tensor import DTensor, Shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    assert isinstance(embed, torch.Tensor)
    files: Case = {"config.json": CONFIG}
    for rank in (0, 1):
        distributed.init_process_group("fake", rank=rank, world_size=2, store=FakeStore())
        mesh = distributed.init_device_mesh("cpu", (2,))
        part = DTensor.from_local(embed[4 * rank : 4 * rank + 4].clone(), mesh, [Shard(0)], run_check=False)
        out = io.BytesIO()
        torch.save({"model.embed_tokens.weight": part, "n": torch.tensor(3)}, out)
        distributed.destroy_process_group()
        files[f"model_rank{rank}.pt"] = out.getvalue()
    return files


def mutate(case: Case, rng: Random) -> Case:
    name = rng.choice([name for name in case if name != "config.json" or rng.random() < 0.1])
    raw = case[name]
    if name == ".metadata":
        return {**case, name: mutate_pickle(raw, rng)}
    if name == "config.json":
        return {**case, name: mutate_json(raw, rng)}
    kind = rng.random()
    contents = members(raw) if name.endswith(".pt") else None
    if contents is not None and kind < 0.7:
        program = next((member for member in contents if member.endswith("data.pkl")), None)
        if program:
            contents[program] = mutate_pickle(contents[program], rng)
        return {**case, name: archive(contents, rng)}
    if kind < 0.75:
        others = {key: value for key, value in case.items() if key != name}
        return others if kind < 0.72 and others else {**others, rng.choice(("__9_0.distcp", "model_rank3.pt")): raw}
    return {**case, name: mutate_directory(raw, rng) if kind < 0.9 else mutate_bytes(raw, rng)}


def read(directory: Path) -> object:
    from tiebeam.checkpoint import open_checkpoint
    from tiebeam.doctor import diagnose
    from tiebeam.errors import TiebeamError

    checkpoint = open_checkpoint(directory)
    for name, info in checkpoint.tensors.items():
        if info.size <= fuzz_torch_zip.LARGE:
            with suppress(TiebeamError):
                assert checkpoint.tensor(name).shape == info.shape
    with suppress(TiebeamError):
        diagnose(directory)
    return None
