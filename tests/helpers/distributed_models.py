"""Tiny models saved by two ranks: FSDP2, FSDP1, tensors sharded by columns, the Hugging Face shards of DCP.

Run as a program with a directory to fill; one launch makes everything, because starting it takes most of the time. Each
kind of model (tied, untied, and untied with two equal matrices) is also saved as plain safetensors to compare with,
with every name stored: the directory `KIND/whole`.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

KINDS = ("tied", "untied", "twin")
WORLD, VOCAB = 2, 41  # an odd vocabulary: the last rank has fewer rows


def model(kind: str) -> Any:
    from helpers.tiny_models import build

    made = build("llama", tie_word_embeddings=kind == "tied", vocab_size=VOCAB, hidden_size=8, intermediate_size=12)
    if kind == "twin":
        made.lm_head.weight.data.copy_(made.model.embed_tokens.weight.data)
    return made


def work(rank: int, out: Path, port: int) -> None:
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import save_file
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType, fully_shard
    from torch.distributed.tensor import Shard, distribute_tensor

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORLD)
    mesh = init_device_mesh("cpu", (WORLD,))
    for kind in KINDS:
        where, made = out / kind, model(kind)
        whole = {name: tensor.clone() for name, tensor in made.state_dict().items()}
        if rank == 0:
            for folder in (where, where / "whole"):
                folder.mkdir(exist_ok=True)
                made.config.save_pretrained(folder)
            save_file(whole, where / "whole" / "model.safetensors")
        dist.barrier()

        for layer in made.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(made, mesh=mesh)
        optimizer = torch.optim.AdamW(made.parameters(), lr=0.0, weight_decay=0.0)
        tokens = torch.arange(8)[None]
        made(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        state, moments = get_model_state_dict(made), get_optimizer_state_dict(made, optimizer)
        dcp.save({"app": {"model": state, "optim": moments, "step": 3}}, checkpoint_id=where / "fsdp2")
        dcp.save({"optimizer": moments}, checkpoint_id=where / "moments")
        plain = {name: tensor for name, tensor in state.items() if kind != "tied" or name != "lm_head.weight"}
        dcp.save(plain, storage_writer=HuggingFaceStorageWriter(str(where / "hf"), save_distributed=True))
        (where / "dtensors").mkdir(exist_ok=True)
        torch.save(state, where / "dtensors" / f"pytorch_model_fsdp_0_rank{rank}.bin")

        placement = {name: Shard(1 if name == "lm_head.weight" else 0) for name in whole}
        columns = {name: distribute_tensor(tensor, mesh, [placement[name]]) for name, tensor in whole.items()}
        dcp.save(columns, checkpoint_id=where / "columns")
        (where / "column_files").mkdir(exist_ok=True)
        torch.save(columns, where / "column_files" / f"model_rank{rank}.pt")

        wrapped = FullyShardedDataParallel(model(kind), device_id=torch.device("cpu"), use_orig_params=True)
        with FullyShardedDataParallel.state_dict_type(wrapped, StateDictType.SHARDED_STATE_DICT):
            state = wrapped.state_dict()
            dcp.save({"model": state}, checkpoint_id=where / "checkpoint-7" / "pytorch_model_fsdp_0")
            (where / "sharded").mkdir(exist_ok=True)
            torch.save(state, where / "sharded" / f"model_rank{rank}.pt")
        with FullyShardedDataParallel.state_dict_type(wrapped, StateDictType.LOCAL_STATE_DICT):
            (where / "local").mkdir(exist_ok=True)
            torch.save(wrapped.state_dict(), where / "local" / f"pytorch_model_fsdp_rank{rank}.bin")
    dist.barrier()
    dist.destroy_process_group()


def main(out: str) -> None:
    import socket

    import torch.multiprocessing as multiprocessing

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    import transformers  # noqa: F401  imported once, before the fork

    multiprocessing.start_processes(work, (Path(out), port), WORLD, start_method="fork")


if __name__ == "__main__":
    main(sys.argv[1])
