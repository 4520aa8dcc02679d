"""What the transformers of this environment does with each checkpoint: one JSON line per directory named on stdin.

Runs alone in any environment that has transformers (4 or 5), torch and safetensors: it imports nothing of the project.
"""

import json
import os
import sys
import warnings
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import torch
import transformers
from safetensors.torch import load_file

transformers.logging.set_verbosity_error()
torch.set_num_threads(1)
AUTO = {
    "CAUSAL_LM": "AutoModelForCausalLM",
    "IMAGE_TEXT_TO_TEXT": "AutoModelForImageTextToText",
    "SEQ_TO_SEQ_CAUSAL_LM": "AutoModelForSeq2SeqLM",
    "MASKED_LM": "AutoModelForMaskedLM",
    "SPEECH_SEQ_2_SEQ": "AutoModelForSpeechSeq2Seq",
}


def outcome(embed, head, E, W, stored):
    """The word for what came out of loading: embed, head [V, D] in memory; E, W the numbers written."""
    tied = embed is head or embed.data_ptr() == head.data_ptr()
    is_embed = "E" if torch.equal(embed, E) else "W" if torch.equal(embed, W) else "random"
    is_head = "E" if torch.equal(head, E) else "W" if torch.equal(head, W) else "random"
    pair = (is_embed, is_head)
    if pair == ("random", "random"):
        return "random pair"
    if is_head == "random":
        return "random head"
    if is_embed == "random":
        return "random embedding"
    if stored == "differ":
        if pair == ("E", "W"):
            return "keeps both"
        return {("E", "E"): "drops the stored head", ("W", "W"): "drops the stored embedding"}.get(pair, f"odd {pair}")
    if stored == "rows":
        return "drops the stored head" if pair == ("E", "E") else f"odd {pair}"
    if stored == "equal":
        return "ties" if tied else "keeps both"
    return "ties" if tied else "copies"


def observe(where, stored, task):
    expected = load_file(Path(where) / "expected.st")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            cls = getattr(transformers, AUTO[task])
            model, info = cls.from_pretrained(where, output_loading_info=True, torch_dtype=torch.float32)
        except Exception as error:
            known = "does not recognize this architecture" not in str(error)
            return {
                "outcome": "refuses" if known else "not supported",
                "why": f"{type(error).__name__}: {error}"[:300],
            }
        embed, head = model.get_input_embeddings(), model.get_output_embeddings()
        if embed is None or head is None:
            return {"outcome": "no head"}
        if embed.weight.is_meta or head.weight.is_meta:
            return {"outcome": "refuses", "why": "left on the meta device"}
        found = outcome(embed.weight.data, head.weight.data, expected["E"], expected["W"], stored)
        return {
            "outcome": found,
            "missing": sorted(info["missing_keys"]),
            "unexpected": sorted(info["unexpected_keys"]),
        }


def main():
    print(json.dumps({"transformers": transformers.__version__, "torch": torch.__version__}), flush=True)
    for line in sys.stdin:
        where, stored, task = json.loads(line)
        try:
            result = observe(where, stored, task)
        except Exception as error:
            result = {"outcome": "error", "why": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps([where, result]), flush=True)


if __name__ == "__main__":
    main()
