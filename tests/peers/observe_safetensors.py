"""What safetensors.torch.load_model does with each checkpoint: one JSON line per directory named on stdin.

The module is the one that the installed transformers builds from the config, tied as the config declares. Runs in any
environment that has transformers, torch and safetensors.
"""

import json
import os
import sys
import warnings
from importlib.metadata import version
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from observe_transformers import AUTO, outcome
from safetensors.torch import load_file, load_model

transformers.logging.set_verbosity_error()
torch.set_num_threads(1)


def observe(where, stored, task):
    expected = load_file(Path(where) / "expected.st")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = getattr(transformers, AUTO[task]).from_config(transformers.AutoConfig.from_pretrained(where))
        try:
            load_model(model, Path(where) / "model.safetensors")
        except Exception as error:
            return {"outcome": "refuses", "why": f"{type(error).__name__}: {error}"[:300]}
    embed, head = model.get_input_embeddings(), model.get_output_embeddings()
    return {"outcome": outcome(embed.weight.data, head.weight.data, expected["E"], expected["W"], stored)}


def main():
    print(json.dumps({"safetensors": version("safetensors"), "transformers": transformers.__version__}), flush=True)
    for line in sys.stdin:
        where, stored, task = json.loads(line)
        try:
            result = observe(where, stored, task)
        except Exception as error:
            result = {"outcome": "error", "why": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps([where, result]), flush=True)


main()
