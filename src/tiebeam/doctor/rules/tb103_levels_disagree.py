"""TB103: the levels of the config disagree about the tie."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tiebeam.doctor.examined import ExaminedCheckpoint
from tiebeam.doctor.examples import matrix, write_llama
from tiebeam.doctor.fix import AGREE_AT_EVERY_LEVEL, Repair
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step
from tiebeam.families.config_levels import FLAG


def check(model: ExaminedCheckpoint) -> Iterator[Evidence]:
    if not model.declares or not model.flags:
        return
    values = {bool(value) for value in model.flags.values()}
    written = ", ".join(f"{'.'.join(path)} = {str(value).lower()}" for path, value in model.flags.items())
    if len(values) > 1:
        yield Evidence(f"{written}; {model.pair.declared_by} decides here")
    elif (FLAG,) not in model.flags and values != {model.pair.declared}:
        yield Evidence(f"{written}, but {model.pair.declared_by} decides here")


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
    "config has the flag and the level that transformers 5 reads for this type resolves to another value.",
    check=check,
    fix=fix,
    steps=steps,
    example=example,
    seen_in=("transformers#43429", "transformers#45857", "vllm#33359"),
)
