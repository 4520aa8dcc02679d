"""Training on torch, on one rank or several."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import NDArray

from tiebeam.doctor.guard import guard
from tiebeam.nn import GPT, GPTConfig, Provenance, gradient_provenance
from tiebeam.nn.collectives import full_tensor
from tiebeam.train.cpu_threads import ThreadChoice, ThreadWatch, choose_threads, rank_threads
from tiebeam.train.device import autocast, rank_device
from tiebeam.train.distributed.ddp import parallelism_for
from tiebeam.train.distributed.environment import Distribution
from tiebeam.train.optimizers import make_optimizers
from tiebeam.train.resume_state import load_state_tensors, read_full, read_sharded, state_tensors, write_shards
from tiebeam.train.settings import Settings

if TYPE_CHECKING:
    from tiebeam.corpus.batches import Batch
    from tiebeam.train.run_directory import RunDirectory


class TorchBackend:
    """A `tiebeam.nn.GPT` and torch optimizers. See `Backend` for the methods."""

    def __init__(
        self, settings: Settings, config: GPTConfig, distribution: Distribution, model: GPT | None = None
    ) -> None:
        self.settings, self.distribution = settings, distribution
        self.parallelism = parallelism_for(distribution)
        self._watch_threads: ThreadWatch | None = None
        self.thread_choice: ThreadChoice | None = None
        self._set_threads()
        torch.manual_seed(settings.seed)
        self.device = rank_device(settings.device, distribution)
        self.model = (model or GPT(config)).to(self.device)
        self._forward: Any = self.parallelism.wrap(self.model, settings.compile)
        self.optimizers = make_optimizers(
            self.model.roles(), settings.learning_rates, settings.optimizer, self.parallelism.muon_spread,
            coupled=settings.coupled_adam,
        )  # fmt: skip
        self._watch: gradient_provenance | None = None
        self.guard = None
        if distribution.world_size > 1:
            self.guard = guard(self.model, tied=self.model.tied)
            for optimizer in self.optimizers:
                self.guard.watch(optimizer)

    @property
    def tied(self) -> bool:
        return self.model.tied

    @property
    def parameter_count(self) -> int:
        return self.parallelism.parameter_count(self.model)

    def running(self) -> AbstractContextManager[object]:
        return nullcontext()

    def _set_threads(self) -> None:
        """The number that was asked for, or the free cores; of a run with one rank it is corrected while it trains."""
        if self.settings.threads or self.distribution.world_size > 1:
            torch.set_num_threads(self.settings.threads or rank_threads())
            return
        self.thread_choice = choose_threads()
        torch.set_num_threads(self.thread_choice.threads)
        self._watch_threads = ThreadWatch(self.thread_choice.threads)

    def adjust_threads(self) -> ThreadChoice | None:
        changed = self._watch_threads.poll() if self._watch_threads else None
        if changed is not None:
            self.thread_choice = changed
            torch.set_num_threads(changed.threads)
        return changed

    def untie(self) -> None:
        self.model.untie(self.optimizers)
        if self.guard:
            self.guard.tied = False
        self._forward = None  # before the next wrapper: with two of them on one model both would handle its gradients
        self._forward = self.parallelism.wrap(self.model, self.settings.compile)

    def set_schedule(self, multiplier: float, momentum: float) -> None:
        self.optimizers.set(multiplier, momentum)

    def forward_backward(self, batches: Iterator[Batch], measure: bool) -> float:
        settings = self.settings
        self._watch = None
        if measure and self.model.tied and not settings.compile:
            self._watch = gradient_provenance(self.model.table, self.parallelism.gather_gradient)
        total = 0.0
        with self._watch or nullcontext():
            for number in range(settings.accumulate):
                x, y = (torch.from_numpy(part).to(self.device) for part in next(batches))
                with self.parallelism.micro_batch(self._forward, last=number == settings.accumulate - 1):
                    with autocast(self.device):
                        loss = self._forward(x, y, z_loss=settings.z_loss) / settings.accumulate
                    loss.backward()
                total += float(loss.detach())
        return total

    def gradient_metrics(self) -> dict[str, float]:
        if self._watch is not None:
            return self._watch.result.to_dict()
        table, head = self.model.table.weight, self.model.lm_head
        if head is None or table.grad is None or head.weight.grad is None:
            return {}
        dE, dW = full_tensor(table.grad), full_tensor(head.weight.grad)
        sums = torch.stack([dE.square().sum(), dW.square().sum(), (dE * dW).sum()])
        return Provenance.of(*self.model.table.sum_over_ranks(sums).tolist()).to_dict()

    def optimizer_step(self) -> None:
        self.optimizers.step()
        self.optimizers.zero_grad()
        self.model.restore_constraints()

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        with evaluating(self.model):
            yield
        self.parallelism.reshard(self.model)

    def loss_sum(self, batch: Batch) -> float:
        return loss_sum(self.model, batch) * self.parallelism.loss_weight

    def target_losses(self, batch: Batch) -> NDArray[Any]:
        x, y = (torch.from_numpy(part).to(self.device) for part in batch)
        with autocast(self.device):
            losses = self.model(x, y, reduction="none")
        return losses.float().cpu().numpy()  # type: ignore[no-any-return]

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        elif self.device.type == "mps":
            torch.mps.synchronize()

    def save_state(self, run: RunDirectory, facts: Mapping[str, Any]) -> None:
        from safetensors.torch import save

        if self.guard:
            self.guard.enforce("training")
        tensors, scalars = state_tensors(self.model, list(self.optimizers))
        facts = {**facts, **scalars}
        if self.distribution.world_size == 1:
            flat = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
            run.save_state(save(flat, {"facts": json.dumps(facts)}))
        else:
            run.save_sharded_state(facts, lambda staging: write_shards(staging, tensors), self.distribution)

    def load_state(self, saved: Path, facts: Mapping[str, Any]) -> None:
        optimizers = list(self.optimizers)
        several = self.distribution.world_size > 1
        tensors = read_sharded(saved, self.model, optimizers) if several else read_full(saved)
        load_state_tensors(self.model, optimizers, tensors, facts)
        if self.guard:
            self.guard.enforce("resuming")

    def export(self) -> tuple[dict[str, Any], bytes] | None:
        from safetensors.torch import save

        model = self.parallelism.full_model(self.model)
        if model is None:
            return None
        config, tensors = model.export(fold=model.config.foldable)
        return config, save(tensors, {"format": "pt"})


@contextmanager
def evaluating(model: GPT) -> Iterator[None]:
    """Evaluation mode without gradients, then the mode that was."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)


def loss_sum(model: GPT, batch: Batch) -> float:  # x, y: [B, T]
    """The summed loss of one batch, in nats."""
    device = model.table.weight.device
    x, y = (torch.from_numpy(part).to(device) for part in batch)
    with autocast(device):
        return float(model(x, y, reduction="sum"))
