"""What mlx-lm does with each checkpoint: one JSON line per directory named on stdin.

Runs alone in an environment that has mlx-lm: it imports nothing of the project. mlx-lm loads strictly, so no parameter
of a loaded model is random: which of the stored matrices E and W the model holds tells what it did.
"""

import contextlib
import json
import os
import sys
from importlib.metadata import version
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model

mx.set_default_device(mx.cpu)


def observe(where, stored):
    expected = mx.load(str(Path(where) / "expected.st"), format="safetensors")
    E, W = np.array(expected["E"]), np.array(expected["W"])
    try:
        model, _ = load_model(Path(where), strict=True)
    except (Exception, SystemExit) as error:  # the olmo module calls exit() when a package is missing
        text = f"{type(error).__name__}: {error}"
        supported = "not supported" not in text and not isinstance(error, SystemExit)
        return {"outcome": "refuses" if supported else "not supported", "why": text[:300]}
    held = {"E": 0, "W": 0}
    for _, value in tree_flatten(model.parameters()):
        if value.shape == E.shape:
            array = np.array(value.astype(mx.float32))
            held["E"] += int(np.array_equal(array, E))
            held["W"] += int(np.array_equal(array, W))
    if not held["E"] and not held["W"]:
        return {"outcome": "random pair"}
    if stored == "differ":
        both = held["E"] and held["W"]
        return {
            "outcome": "keeps both" if both else "drops the stored head" if held["E"] else "drops the stored embedding"
        }
    if stored == "rows":
        return {"outcome": "drops the stored head"}
    if stored == "equal":
        return {"outcome": "ties" if held["E"] == 1 else "keeps both"}
    return {"outcome": "ties"}


def main():
    print(json.dumps({"mlx-lm": version("mlx-lm"), "mlx": version("mlx")}), flush=True)
    for line in sys.stdin:
        where, stored, _ = json.loads(line)
        try:
            with contextlib.redirect_stdout(sys.stderr):
                result = observe(where, stored)
        except Exception as error:
            result = {"outcome": "error", "why": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps([where, result]), flush=True)


main()
