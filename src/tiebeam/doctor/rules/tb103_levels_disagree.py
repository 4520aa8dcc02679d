"""TB103: the levels of the config disagree about the tie."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tiebeam.doctor.examined import ExaminedCheckpoint
from tiebeam.doctor.examples import matrix, write_llama
from tiebeam.doctor.fix import AGREE_AT_EVERY_LEVEL, Repair
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step
from tiebeam.families.config_levels import FLAG, config_levels

if TYPE_CHECKING:
    from pathlib import Path

    from tiebeam.doctor.loaders import Prediction


def check(model: ExaminedCheckpoint) -> Iterator[Evidence]:
    if not model.declares or not model.flags:
        return
    values = {bool(value) for value in model.flags.values()}
    written = ", ".join(f"{'.'.join(path)} = {str(value).lower()}" for path, value in model.flags.items())
    if len(values) > 1:
        said = f"{written}; {model.pair.declared_by} decides here"
    elif (FLAG,) not in model.flags and values != {model.pair.declared}:
        said = f"{written}, but {model.pair.declared_by} decides here"
    else:
        return
    others = _misled(model)
    if others is None:
        yield Evidence(said)
    elif others:
        did = "; ".join(f"{seen.loader} {seen.version} {_PHRASES.get(seen.outcome, seen.outcome)}" for seen in others)
        yield Evidence(f"{said}; {did}")
    else:
        yield Evidence(f"{said}; no loader that the tests run takes another level for this type", Severity.NOTE)


_READ_LEVELS = ("transformers 4", "mlx-lm")
_PHRASES = {name: f"starts a {name}" for name in ("random head", "random embedding", "random pair")}


def _misled(model: ExaminedCheckpoint) -> list[Prediction] | None:
    """What the loaders do that would do otherwise if every level said what counts; None if that is not known of one."""
    from tiebeam.doctor.loaders import predictions

    agreed = json.loads(json.dumps(model.checkpoint.config))
    for _, level in config_levels(agreed):
        assert isinstance(level, dict)
        level[FLAG] = model.pair.declared
    misled = []
    for seen, then in zip(
        predictions(model.report, model.checkpoint.config), predictions(model.report, agreed), strict=True
    ):
        if seen.outcome == "not known" and seen.loader in _READ_LEVELS:
            return None
        if seen.observed and seen.outcome != then.outcome:
            misled.append(seen)
    return misled


def fix(model: ExaminedCheckpoint) -> Repair:
    return AGREE_AT_EVERY_LEVEL


def steps(at: Names) -> tuple[Step, ...]:
    return (Step("Write the same value at every level", at.fix),)


def example(directory: Path) -> Path:
    """A Qwen3-VL, whose class reads the top level, with the flag in text_config only."""
    tensors = {"model.language_model.embed_tokens.weight": matrix(0)}
    text = {"model_type": "qwen3_vl_text", "vocab_size": 40, "hidden_size": 8, FLAG: True}
    classes = ["Qwen3VLForConditionalGeneration"]
    return write_llama(directory, tensors, model_type="qwen3_vl", architectures=classes, text_config=text)


RULE = Rule(
    code="TB103",
    severity=Severity.WARNING,
    title="the levels of the config disagree about the tie",
    symptoms="The language model inside a vision model loads tied in one version and with a random head in the next.",
    cause="A multimodal config has the flag at the top and in its text config (text_config, llm_config, decoder, …). "
    "Which one counts differs between architectures, library versions and loaders.",
    detection="The flag at the top and in every nested text config is compared. It is also found if only a nested "
    "config has the flag and the level that transformers 5 reads for this type resolves to another value. It is a note "
    "if no loader that the tests run would load this model otherwise with one value at every level: transformers "
    "itself writes such configs.",
    check=check,
    fix=fix,
    steps=steps,
    example=example,
    seen_in=("transformers#43429", "transformers#45857", "vllm#33359"),
)
