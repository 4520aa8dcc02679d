"""TB504: Muon optimizes the embedding or the head."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tiebeam.doctor.examined_module import ExaminedModule
from tiebeam.doctor.examples import LiveExample, live_model
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step


def check(module: ExaminedModule) -> Iterator[Evidence]:
    for held in module.held_pair:
        if "muon" in held.optimizer.lower():
            shape = tuple(held.parameter.shape)
            yield Evidence(f"{held.optimizer} group {held.group} holds a matrix of {shape} from the vocabulary")


def steps(at: Names) -> tuple[Step, ...]:
    return (
        Step(
            "Do not optimize embeddings with Muon: give it the hidden matrices only, and use AdamW with its own "
            "learning rate for the embedding",
            python="optimizer = torch.optim.AdamW([model.get_input_embeddings().weight], lr=3e-4)",
        ),
    )


def example(directory: Path) -> LiveExample:
    import torch

    model = live_model()
    return LiveExample(model, torch.optim.Muon([model.embed_tokens.weight, model.middle.weight]))


RULE = Rule(
    code="TB504",
    severity=Severity.WARNING,
    title="Muon optimizes the embedding or the head",
    symptoms="Training is slower than with AdamW, and rare tokens drift.",
    cause="Muon orthogonalizes the update of a hidden matrix. The gradient of an embedding is sparse in rows, and "
    "orthogonalizing it moves tokens that were not in the batch.",
    detection="A watched optimizer with Muon in its class name holds the embedding or the head.",
    check=check,
    steps=steps,
    example=example,
)
