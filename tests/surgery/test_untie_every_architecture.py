"""`untie` on every class that transformers builds tied: it writes what save_pretrained writes for an untied one.

The result loads in transformers 5 without missing or unexpected keys, every parameter is that of the source, and so are
the logits. Some types run in `make test`, all of them in `make peers`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from helpers import untied_models as models
from tiebeam.errors import BadRequest
from tiebeam.families import lookup
from tiebeam.families.disk_names import embed_name, head_name
from tiebeam.surgery import execute, open_source, plan_untie

SEQ2SEQ, MASKED, CAUSAL, IMAGE = "SEQ_TO_SEQ_CAUSAL_LM", "MASKED_LM", "CAUSAL_LM", "IMAGE_TEXT_TO_TEXT"
SAMPLE = [
    ("bart", SEQ2SEQ), ("bart", CAUSAL), ("marian", SEQ2SEQ), ("m2m_100", SEQ2SEQ), ("pegasus", SEQ2SEQ),
    ("led", SEQ2SEQ), ("prophetnet", SEQ2SEQ), ("bert", MASKED), ("roberta", MASKED), ("albert", MASKED),
    ("gpt2", CAUSAL), ("llama", CAUSAL), ("gpt_neox", CAUSAL), ("qwen2_vl", IMAGE), ("qwen2_5_vl", IMAGE),
    ("qwen3_vl", IMAGE), ("qwen3_5", IMAGE), ("gemma3", IMAGE), ("llava", IMAGE), ("whisper", "SPEECH_SEQ_2_SEQ"),
]  # fmt: skip
# transformers ties these whatever the flag: `untie` refuses, and says so.
ALWAYS_TIED = {"longt5", "mt5", "pop2piano", "t5", "udop", "umt5"}
# The flag also scales the logits: `untie` refuses.
SCALED_BY_FLAG = {"switch_transformers"}


def every_class() -> list[Any]:
    found = [pytest.param(*each, id="-".join(each)) for each in SAMPLE]
    rest = [each for each in models.classes() if each not in SAMPLE]
    return found + [pytest.param(*each, id="-".join(each), marks=pytest.mark.exhaustive) for each in rest]


def build_or_skip(model_type: str, task: str, tied: bool) -> Any:
    if lookup(model_type) is None:
        pytest.skip("not in the table of architectures")
    try:
        return models.build(model_type, task, tied)
    except Exception as error:
        pytest.skip(f"transformers does not build it tiny: {type(error).__name__}")


def load_or_skip(directory: Path, task: str) -> Any:
    """Of a few classes (shieldgemma2, dbrx, the text part of emu3) transformers does not load what it saved."""
    try:
        model, *problems = models.load(directory, task)
    except Exception as error:
        pytest.skip(f"transformers does not load what it saved: {type(error).__name__}")
    if problems != [[], []]:
        pytest.skip("transformers does not load what it saved")
    return model


@pytest.mark.parametrize(("model_type", "task"), every_class())
def test_an_untied_model_is_what_transformers_would_save(model_type: str, task: str, tmp_path: Path) -> None:
    tied = build_or_skip(model_type, task, tied=True)
    if not models.is_tied(tied) or not lookup(model_type).decides:
        pytest.skip("this class does not tie, or transformers refuses its config when it does")
    untied = build_or_skip(model_type, task, tied=False)
    tied.save_pretrained(tmp_path / "tied")
    if model_type in ALWAYS_TIED | SCALED_BY_FLAG:
        with pytest.raises(BadRequest, match="untie it in memory"):
            plan_untie(open_source(tmp_path / "tied"))
        return
    source = load_or_skip(tmp_path / "tied", task)
    untied.save_pretrained(tmp_path / "expected")
    execute(plan_untie(open_source(tmp_path / "tied")), tmp_path / "untied", proof=False, durable=False)
    assert models.saved_names(tmp_path / "untied") == models.saved_names(tmp_path / "expected")
    result, missing, unexpected = models.load(tmp_path / "untied", task)
    assert (missing, unexpected) == ([], [])
    assert not models.is_tied(result)
    before, after = source.state_dict(), result.state_dict()
    assert [name for name in before if not torch.equal(before[name], after[name])] == []
    assert torch.equal(models.logits(source), models.logits(result))


@pytest.mark.parametrize(("model_type", "task"), every_class())
def test_the_names_of_the_pair_are_those_that_save_pretrained_writes(
    model_type: str, task: str, tmp_path: Path
) -> None:
    """By value: the tensors in the file that are the input and the output embedding, each found from the other."""
    from safetensors.torch import load_file

    model = build_or_skip(model_type, task, tied=False)
    embed, head = model.get_input_embeddings(), model.get_output_embeddings()
    if getattr(embed, "weight", None) is None or getattr(head, "weight", None) is None or embed.weight is head.weight:
        pytest.skip("this class has no embedding and head of its own")
    if lookup(model_type).followers and task in (SEQ2SEQ, "SPEECH_SEQ_2_SEQ"):
        pytest.skip("which table is the embedding depends on the tie; see the test above")
    with torch.no_grad():
        for weight in (embed.weight, head.weight):
            weight.copy_(torch.randn(weight.shape))
    model.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    names = {}
    for role, weight in (("embed", embed.weight), ("head", head.weight)):
        names[role] = [n for n, v in stored.items() if v.shape == weight.shape and torch.equal(v, weight.detach())]
    assert len(names["head"]) == 1, names
    assert names["embed"], names
    architecture = lookup(model_type)
    assert architecture is not None
    if not architecture.head:
        pytest.skip("the table has no head for this type")
    if model_type in ("t5gemma", "emu3", "shieldgemma2"):
        pytest.skip("its input is not the table of its head, or the class does not belong to the type")
    assert head_name(architecture, names["embed"][0]) == names["head"][0]
    others = stored.keys() - set(names["embed"])
    found = embed_name(architecture, names["head"][0], others)
    if architecture.followers and task == CAUSAL and architecture.role == "seq2seq_lm":
        assert found is None  # a decoder alone: refused, not guessed
    elif model_type == "bailing_hybrid":
        assert found == "model.embed_tokens.weight"  # its name in memory, which transformers reads as well
    else:
        assert found in names["embed"]
