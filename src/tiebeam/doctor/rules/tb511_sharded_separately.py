"""TB511: the embedding and the head are sharded in different groups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tiebeam.doctor.examined_module import ExaminedModule
from tiebeam.doctor.examples import LiveExample, live_model
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step


def check(module: ExaminedModule) -> Iterator[Evidence]:
    if not module.one_parameter and module.tied and not module.one_storage and module.both_sharded:
        yield Evidence(f"embedding and head are two sharded parameters{module.after}")


def steps(at: Names) -> tuple[Step, ...]:
    return (Step("Tie before sharding, and shard both as one group: fully_shard([model.embed_tokens, model.lm_head])"),)


def example(directory: Path) -> LiveExample:
    """FSDP2 on one rank; the caller destroys the process group."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo", init_method=f"file://{directory}/store", rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1,))
    model = live_model(tied=False)
    for module in (model.embed_tokens, model.lm_head):
        fully_shard(module, mesh=mesh)
    return LiveExample(model, tied=True, stage="shard")


RULE = Rule(
    code="TB511",
    severity=Severity.ERROR,
    title="the tie is broken: embedding and head are sharded as two parameters",
    symptoms="RuntimeError about a parameter that is shared with one already managed; or the two diverge in training "
    "while the checkpoint keeps only one.",
    cause="FSDP2 manages a parameter in one group. A tied pair in two groups loses its tie, or fails in torch 2.13. "
    "A pair that was untied before it was sharded ends in the same way.",
    detection="The model should be tied, and embedding and head are two DTensor parameters.",
    check=check,
    steps=steps,
    example=example,
    seen_in=("accelerate#4171", "torchtitan#2495"),
)
