"""The ranks of a run: which one this is, how they connect, and what they agree on.

torchrun sets the environment variables and `Distribution.from_environment()` reads them. Without them there is one
rank: the same object with `world_size` 1, whose collectives do nothing and import no torch.

The global batch does not depend on the number of ranks: each rank takes its own windows of it. Everything that decides
what happens next (the clock, Ctrl-C, when to save) is agreed on once per step, so that all ranks stop at the same step.
Every method that communicates is called by all ranks, in the same order.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from tiebeam.errors import BadRequest, TiebeamError

if TYPE_CHECKING:
    from tiebeam.train.settings import Settings

Layout = Literal["ddp", "fsdp", "vocab"]
TIMEOUT = timedelta(minutes=10)  # for a rank that hangs; a rank that exits is noticed at once
OLDEST_TORCH = "2.9"
_COMMAND = "torchrun --nproc-per-node {} -m tiebeam train"
_OPTION = {"ddp": "", "fsdp": "--shard", "vocab": "--shard-vocab"}


class Distribution:
    """The ranks of one run, seen from one of them.

    `with Distribution.from_environment() as distribution:` joins the process group and leaves it at the end.

    Args:
        rank: this rank, from 0. Rank 0 writes the files and prints.
        world_size: number of ranks.
        local_rank: this rank among those of the same machine; picks the GPU.
        layout: "ddp" (replicas), "fsdp" (every tensor sharded) or "vocab" (embedding and head sharded by rows).
    """

    def __init__(self, rank: int = 0, world_size: int = 1, local_rank: int = 0, layout: Layout = "ddp") -> None:
        self.rank, self.world_size, self.local_rank, self.layout = rank, world_size, local_rank, layout
        self.store: Any = None
        """torchrun's key-value store, once this rank has joined."""

    @classmethod
    def from_environment(cls, *, shard: bool = False, shard_vocab: bool = False) -> Distribution:
        """Read torchrun's environment variables. `shard` is FSDP2, `shard_vocab` shards embedding and head only."""
        if shard and shard_vocab:
            raise BadRequest(
                "`shard=True` already shards the embedding; pass either `shard=True` or `shard_vocab=True`"
            )
        layout: Layout = "fsdp" if shard else "vocab" if shard_vocab else "ddp"
        world_size = int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1
        if world_size == 1:
            if shard or shard_vocab:
                raise BadRequest(
                    f"{_OPTION[layout]} needs several ranks, and this is a single one; "
                    f"start it with: {_COMMAND.format(2)} {_OPTION[layout]} ..."
                )
            return cls()
        return cls(int(os.environ["RANK"]), world_size, int(os.environ.get("LOCAL_RANK", "0")), layout)

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which writes files and prints."""
        return self.rank == 0

    @property
    def joined(self) -> bool:
        """Whether this rank has joined the process group."""
        return self.store is not None

    @property
    def command(self) -> str:
        """The command that starts the same number of ranks in the same layout on this machine."""
        if self.world_size == 1:
            return "tiebeam train"
        ranks = os.environ.get("LOCAL_WORLD_SIZE", self.world_size)
        return f"{_COMMAND.format(ranks)} {_OPTION[self.layout]}".rstrip()

    def check(self, settings: Settings) -> None:
        """Refuse settings that these ranks cannot run, before anything is built."""
        if self.world_size == 1:
            return
        if settings.backend != "torch":
            raise BadRequest(
                f"the {settings.backend} backend runs on a single rank, and this run has {self.world_size}; "
                "start it without torchrun, or use `backend='torch'`"
            )
        from torch import __version__ as torch_version

        if torch_version < OLDEST_TORCH:
            raise BadRequest(
                f"several ranks need torch {OLDEST_TORCH} or newer (for resume states without pickle), "
                f"and this is {torch_version}; upgrade torch or train on one rank"
            )
        if settings.batch % self.world_size:
            step = self.world_size * settings.context * settings.accumulate
            raise BadRequest(
                f"a micro-batch of {settings.batch} windows does not divide evenly among {self.world_size} ranks; "
                f"use `batch_tokens={-(-settings.batch_tokens // step) * step}` or another --nproc-per-node"
            )
        if self.layout == "fsdp" and not isinstance(settings.tie, bool):
            raise BadRequest(
                f"`tie={settings.tie}` unties during the run, which --shard does not support; "
                "use --shard-vocab, or tie=True or tie=False"
            )
        for name in ("coupled_adam", "pseudo_inverse"):
            if self.layout != "ddp" and getattr(settings, name):
                raise BadRequest(
                    f"`{name}=True` needs the full embedding on every rank; drop {_OPTION[self.layout]}, or drop {name}"
                )
        if self.layout != "ddp" and settings.compile:
            raise BadRequest(f"`compile=True` is not supported with {_OPTION[self.layout]}; drop one of them")

    def __enter__(self) -> Distribution:
        if self.world_size > 1:
            import torch
            import torch.distributed as dist
            from torch.distributed.rendezvous import rendezvous

            backend = "gloo"
            if torch.cuda.is_available() and dist.is_nccl_available() and self.local_rank < torch.cuda.device_count():
                backend = "cpu:gloo,cuda:nccl"
                torch.cuda.set_device(self.local_rank)
            self.store, _, _ = next(rendezvous("env://", timeout=TIMEOUT))
            dist.init_process_group(
                backend, store=self.store, rank=self.rank, world_size=self.world_size, timeout=TIMEOUT
            )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        # destroy_process_group may hang if a peer died, so it is skipped after an error.
        if self.world_size > 1 and kind is None:
            import torch.distributed as dist

            dist.destroy_process_group()

    def exit(self, code: int = 0) -> None:
        """End a rank of several at once; a single rank returns and ends as any Python program does.

        Skip interpreter shutdown: gloo threads sometimes abort during teardown, and torchrun would report a finished
        run as failed.
        """
        if self.world_size > 1:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def sum(self, *values: float) -> list[float]:
        """Sum each value over all ranks, in float64."""
        if self.world_size == 1:
            return list(values)
        import torch

        from tiebeam.nn.collectives import RankGroup

        return [float(value) for value in RankGroup.of().all_reduce_(torch.tensor(values, dtype=torch.float64))]

    def agree(self, seconds: float, save: bool, stop: bool) -> tuple[float, bool, bool]:
        """Rank 0's clock and whether it wants to save; whether any rank wants to stop."""
        main = (seconds, float(save)) if self.is_main else (0.0, 0.0)
        seconds, saves, stops = self.sum(*main, float(stop))
        return seconds, saves > 0, stops > 0

    def on_main(self, work: Callable[[], object]) -> None:
        """Run `work` on rank 0; a TiebeamError there is raised on every rank."""
        error: TiebeamError | None = None
        if self.is_main:
            try:
                work()
            except TiebeamError as found:
                error = found
        if self.world_size > 1:
            import torch.distributed as dist

            box = [error]
            dist.broadcast_object_list(box, src=0)
            error = box[0]
        if error is not None:
            raise error

    def barrier(self) -> None:
        if self.world_size > 1:
            import torch.distributed as dist

            dist.barrier()
