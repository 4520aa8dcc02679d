"""The processes of one run: which one this is, what each holds, and what they tell each other.

torchrun sets the environment, `Distribution.from_environment()` reads it, and without it there is one process: the same
object with `world` 1, whose exchanges are nothing. Three ways to share a model out:

    replicas  every process has the whole model, gradients are averaged (DDP). The default.
    shards    every process has a part of every tensor (FSDP2): each block gathers itself when it is needed; the table,
              the head and what else lies outside the blocks are one group at the root, so a tied pair stays one.
    rows      replicas of the trunk; of the table and the head every process has V/N rows, and never gathers them.

The global batch is the same whatever the number of processes: each takes its own windows of it. Everything that decides
what comes next (the clock, Ctrl-C, when to save) is agreed on once a step, so that all processes stop at the same one.
Every method that exchanges something is called by all of them, in the same order.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from tiebeam.errors import BadRequest, TiebeamError
from tiebeam.nn import GPT, ShardedEmbedding, keep_from_ddp, shard_vocabulary, sharded_parameters, whole_model
from tiebeam.nn.gradient_share import Rows
from tiebeam.train.device import choose_device, free_threads
from tiebeam.train.distributed_muon import Spread, between_replicas, between_shards, gathered

if TYPE_CHECKING:
    from tiebeam.train.settings import Settings

Layout = Literal["replicas", "shards", "rows"]
START = "torchrun --nproc-per-node {} -m tiebeam train"
_PATIENCE = timedelta(minutes=10)  # for a process that is there and silent; one that ends is noticed at once
_ROLL_CALL_SECONDS = 1.0
_OLDEST = "2.9"


class ProcessLost(TiebeamError):
    """Another process of the run ended or fell silent."""


class Distribution:
    """`with Distribution.from_environment() as processes:` joins the others, and leaves them at the end."""

    def __init__(self, rank: int = 0, world: int = 1, local_rank: int = 0, layout: Layout = "replicas") -> None:
        self.rank, self.world, self.local_rank, self.layout = rank, world, local_rank, layout
        self._store: Any = None
        self._mesh: Any = None

    @classmethod
    def from_environment(cls, *, shard: bool = False, shard_vocab: bool = False) -> Distribution:
        """What torchrun says, and how to share the model out."""
        if shard and shard_vocab:
            raise BadRequest("--shard shares out every tensor, the table among them; give it or --shard-vocab")
        world = int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1
        if world == 1:
            if shard or shard_vocab:
                flag = "--shard" if shard else "--shard-vocab"
                raise BadRequest(
                    f"{flag} shares a model out over several processes and this is one; "
                    f"start it with: {START.format(2)} {flag} ..."
                )
            return cls()
        layout: Layout = "shards" if shard else "rows" if shard_vocab else "replicas"
        return cls(int(os.environ["RANK"]), world, int(os.environ.get("LOCAL_RANK", "0")), layout)

    @property
    def is_main(self) -> bool:
        """The one that writes files and speaks."""
        return self.rank == 0

    @property
    def joined(self) -> bool:
        """Whether this one has met the others."""
        return self._store is not None

    @property
    def start(self) -> str:
        """The command that starts as many processes again, on this machine."""
        flag = {"replicas": "", "shards": " --shard", "rows": " --shard-vocab"}[self.layout]
        return START.format(os.environ.get("LOCAL_WORLD_SIZE", self.world)) + flag

    def check(self, settings: Settings) -> None:
        """Refuse what these processes cannot do together, before anything is built."""
        if self.world > 1 and torch.__version__ < _OLDEST:
            raise BadRequest(
                f"several processes need torch {_OLDEST} or newer, for states without pickles, and this is "
                f"{torch.__version__}; upgrade it, or train with one"
            )
        if settings.batch % self.world:
            part = self.world * settings.context * settings.accumulate
            raise BadRequest(
                f"a micro-batch of {settings.batch} windows cannot be shared evenly by {self.world} processes; "
                f"give --batch-tokens {-(-settings.batch_tokens // part) * part}, or another --nproc-per-node"
            )
        if self.layout == "shards" and settings.tie is not True and settings.tie is not False:
            raise BadRequest(
                f"--tie {settings.tie} splits the table on the way, which --shard cannot do; "
                "share out the vocabulary alone (--shard-vocab), or give --tie yes or no"
            )
        if self.layout != "replicas" and settings.compile:
            flag = "--shard" if self.layout == "shards" else "--shard-vocab"
            raise BadRequest(f"--compile does not go together with {flag}; leave one of them out")

    def device(self, asked: str) -> torch.device:
        """The device of this process: with several on one machine, each its own GPU."""
        chosen = choose_device(asked)
        if self.world == 1 or chosen.type == "cpu":
            return chosen
        if chosen.type == "mps":  # one GPU and no collectives on it
            return torch.device("cpu")
        if self.local_rank >= torch.cuda.device_count():
            raise BadRequest(
                f"process {self.local_rank} of this machine has no GPU of its own, there are "
                f"{torch.cuda.device_count()}; lower --nproc-per-node, or train with --device cpu"
            )
        return torch.device("cuda", self.local_rank)

    def threads(self) -> int:
        """CPU threads for this process, when it is not told."""
        return max(1, free_threads() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))

    def __enter__(self) -> Distribution:
        if self.world > 1:
            backend = "gloo"
            if torch.cuda.is_available() and dist.is_nccl_available() and self.local_rank < torch.cuda.device_count():
                backend = "cpu:gloo,cuda:nccl"
                torch.cuda.set_device(self.local_rank)
            self._store, _, _ = next(rendezvous("env://", timeout=_PATIENCE))
            dist.init_process_group(
                backend, store=self._store, rank=self.rank, world_size=self.world, timeout=_PATIENCE
            )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        # After an error the others may be gone, and taking leave of them could wait for ever.
        if self.world > 1 and kind is None:
            dist.destroy_process_group()

    def end(self, code: int = 0) -> None:
        """End a process that has left the others, when all is written; a run of one process ends as any does.

        Without Python's own farewell: torch's threads for gloo may still be there when its libraries are taken down,
        now and then that aborts the process, and torchrun would report a finished run as failed.
        """
        if self.world > 1:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def wrap(self, model: GPT, compile_it: bool = False) -> Any:
        """What to call for a loss in place of `model`, which stays what it was under its wrapper."""
        forward: Any = torch.compile(model) if compile_it else model
        if self.world == 1:
            return forward
        if self.layout == "shards":
            return self._sharded(model)
        if self.layout == "rows":
            if not isinstance(model.table, ShardedEmbedding):
                shard_vocabulary(model)
            keep_from_ddp(model)
        from torch.nn.parallel import DistributedDataParallel

        gc.collect()  # of a wrapper before this one, whose hooks hang on the same parameters until it is gone
        cuda = model.table.weight.device.type == "cuda"
        return DistributedDataParallel(
            forward,
            device_ids=[self.local_rank] if cuda else None,
            gradient_as_bucket_view=True,
            # A one-layer golf model has skip weights of no size, which never get a gradient.
            find_unused_parameters=any(parameter.numel() == 0 for parameter in model.parameters()),
        )

    def _sharded(self, model: GPT) -> GPT:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        self._mesh = init_device_mesh(model.table.weight.device.type, (self.world,))
        for block in model.blocks if model.config.arch == "golf" else model.model.layers:
            fully_shard(block, mesh=self._mesh)
        fully_shard(model, mesh=self._mesh)
        return model

    @contextmanager
    def micro_batch(self, forward: Any, last: bool) -> Iterator[None]:
        """Around forward and backward: gradients are exchanged with the last micro-batch of a step, and only then."""
        if self.world == 1:
            yield
        elif self.layout == "shards":
            forward.set_requires_gradient_sync(last)
            yield
        elif last:
            yield
        else:
            with forward.no_sync():
                yield

    @property
    def spread(self) -> Spread | None:
        """How Muon's work is shared out; None does it all here."""
        if self.world == 1:
            return None
        return between_shards if self.layout == "shards" else between_replicas

    def summed(self, *values: float) -> list[float]:
        """Over all processes, in float64."""
        if self.world == 1:
            return list(values)
        exchanged = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(exchanged)
        return [float(value) for value in exchanged]

    def settle(self, model: GPT) -> None:
        """After a forward pass without a backward one: give back what was gathered for it."""
        if self.world > 1 and self.layout == "shards":
            model.reshard()  # type: ignore[operator]

    @property
    def own_share(self) -> float:
        """Of a summed loss that the model returns, what this process's own tokens are: all, unless it is everyone's."""
        return 1 / self.world if self.layout == "rows" else 1.0

    def agree(self, clock: float, save: bool, stop: bool) -> tuple[float, bool, bool]:
        """The main process's clock and its wish to save; anyone's wish to stop."""
        told = (clock, float(save)) if self.is_main else (0.0, 0.0)
        seconds, saves, stops = self.summed(*told, float(stop))
        return seconds, saves > 0, stops > 0

    def from_main(self, value: Any) -> Any:
        """A small thing that the main process knows."""
        if self.world == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def on_main(self, work: Callable[[], object]) -> None:
        """Have the main process do it; an error of the user's making is everyone's."""
        error: TiebeamError | None = None
        if self.is_main:
            try:
                work()
            except TiebeamError as found:
                error = found
        error = self.from_main(error)
        if error is not None:
            raise error

    def barrier(self) -> None:
        if self.world > 1:
            dist.barrier()

    def whole(self, tensor: Tensor) -> Tensor:
        """All of a tensor of which this process may hold a part."""
        full: Callable[[], Tensor] | None = getattr(tensor, "full_tensor", None)
        return tensor if full is None else full()

    def gather_gradient(self, gradient: Tensor, rows: Rows) -> tuple[Tensor, Rows]:
        """The table's averaged gradient, whole, and the rows that everyone's lookup has put into it.

        Where each holds rows of its own, both are complete as they are, and sums over them are added up later.
        """
        if self.world == 1 or self.layout == "rows" or not rows:
            return gradient, rows
        ids = torch.cat([i.reshape(-1) for i, _ in rows])
        looked_up = torch.cat([g.reshape(-1, g.shape[-1]) for _, g in rows]) / self.world
        return self.whole(gradient), [(gathered(ids), gathered(looked_up))]

    def whole_model(self, model: GPT) -> GPT | None:
        """The model as one process would have it, on the main process; None elsewhere."""
        if self.world == 1 or self.layout == "replicas":
            return model if self.is_main else None
        if self.layout == "rows":
            return whole_model(model)
        tensors = {}
        for name, tensor in model.state_dict().items():
            full = self.whole(tensor)
            if self.is_main:
                tensors[name] = full.detach()
        if not self.is_main:
            return None
        with torch.device("meta"):
            plain = GPT(model.config)
        plain.load_state_dict(tensors, assign=True)
        return plain

    def parameters(self, model: GPT) -> int:
        """Of the whole model."""
        rows = {id(block) for block in sharded_parameters(model).values()}
        return sum(model.config.vocab * p.shape[1] if id(p) in rows else p.numel() for p in model.parameters())

    def lost(self, error: BaseException) -> bool:
        """Whether an error means that another process is gone, rather than that this one is at fault."""
        if self.world == 1 or isinstance(error, TiebeamError):
            return False
        if isinstance(error, dist.DistError):
            return True
        text = f"{error}".lower()
        signs = ("gloo", "nccl", "connection closed", "connection reset", "broken pipe", "processgroup")
        return type(error).__name__ in ("RuntimeError", "CheckpointException") and any(sign in text for sign in signs)

    def missing(self) -> list[int]:
        """Who does not answer any more, as far as the store, which torchrun keeps, can tell."""
        if self._store is None:
            return []
        try:
            self._store.set(f"tiebeam/here/{self.rank}", b"1")
            absent, before = list(range(self.world)), 0
            while len(absent) != before:  # somebody has answered since: give the next one as long
                time.sleep(_ROLL_CALL_SECONDS)
                before = len(absent)
                absent = [rank for rank in absent if not self._store.check([f"tiebeam/here/{rank}"])]
        except (RuntimeError, OSError):
            return []
        return absent

    def speaks_first(self) -> bool:
        """True for the first that asks, so that a thing is said once."""
        if self._store is None:
            return True
        try:
            return bool(self._store.add("tiebeam/told", 1) == 1)
        except (RuntimeError, OSError):
            return True
