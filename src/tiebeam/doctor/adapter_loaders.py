"""What programs do with an adapter that changes the pair of its base: PEFT's merge, vLLM, llama.cpp.

PEFT is run in the tests. vLLM's peft_helper.py and llama.cpp's convert_lora_to_gguf.py and llama-adapter.cpp were read.
Outcomes: `exact` (the result computes what was trained), `changes the model`, `refuses`, `not known`.
"""

from __future__ import annotations

from tiebeam.doctor.examined_adapter import ExaminedAdapter
from tiebeam.doctor.loaders.loader import NOT_KNOWN, Outcome, Prediction

PEFT = "0.21.2"


def adapter_predictions(adapter: ExaminedAdapter) -> tuple[Prediction, ...]:
    """One prediction per program; none for an adapter that leaves the pair alone."""
    if not (adapter.embed.touched or adapter.head.touched):
        return ()
    programs = (
        ("PEFT merge", peft_merge(adapter), f"version {PEFT}, run in the tests", PEFT, True),
        ("vLLM", _vllm(adapter), "lora/peft_helper.py, from its source", "", False),
        ("llama.cpp", _llama_cpp(adapter), "convert_lora_to_gguf.py and llama-adapter.cpp, from its source", "", False),
    )
    return tuple(
        Prediction(name, outcome, reason, f"{source}, 2026-11-16", version, observed)
        for name, (outcome, reason), source, version, observed in programs
    )


def peft_merge(adapter: ExaminedAdapter) -> Outcome:
    """What merge_and_unload() makes of the pair."""
    embed, head = adapter.embed, adapter.head
    if not adapter.base_is_tied:
        if head.lora and _left_out(adapter):
            return "changes the model", "PEFT leaves the head's factors out: target_modules does not name the head"
        return "exact", "merging changes each matrix by its own part; the two stay separate"
    if embed.lora or head.lora:
        if not adapter.breaks_tie:
            reason = "merging adds the change twice to the one tied matrix"
        elif embed.lora and head.lora:
            reason = (
                "merging adds both changes to the one tied matrix: embedding and head each get the other's change too"
            )
        else:
            reason = "merging adds the change to the one tied matrix: embedding and head both get it"
        return "changes the model", reason
    if embed.copy or head.copy:
        if not adapter.breaks_tie:
            return "exact", "merging stores the trained copy as the one tied matrix"
        return (
            "exact",
            f"merging stores two matrices, and PEFT {PEFT} sets the flag to false; if an older PEFT leaves it true, "
            "the result is torn",
        )
    return "exact", "merging writes the trained rows into the one tied matrix: embedding and head both get them"


def _left_out(adapter: ExaminedAdapter) -> bool:
    """Whether the head's factors were added by ensure_weight_tying only, which does nothing on an untied base."""
    targets = adapter.config.get("target_modules")
    head = adapter.base.pair.head
    name = head.name.removesuffix(".weight").split(".")[-1] if head else "lm_head"
    return isinstance(targets, list) and not any(str(target).split(".")[-1] == name for target in targets)


def _vllm(adapter: ExaminedAdapter) -> Outcome:
    if adapter.embed.copy or adapter.head.copy:
        return "refuses", "modules_to_save is not supported; merge first"
    return NOT_KNOWN, "which modules may have LoRA depends on the model's code"


def _llama_cpp(adapter: ExaminedAdapter) -> Outcome:
    if adapter.embed.copy or adapter.head.copy:
        return "refuses", "the converter accepts LoRA factors only; merge first"
    if adapter.head.lora and adapter.base_is_tied:
        return "refuses", "the head's factors name output.weight, which a tied base does not have"
    return NOT_KNOWN, "this kind of adapter was not read there"
