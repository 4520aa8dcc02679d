"""How mlx-lm reads a model with added tokens: one JSON line per directory named on stdin.

Runs alone in an environment that has mlx-lm: it imports nothing of the project. Each answer has the ids of the text,
the text that they decode to, and the logits of the ids in float32.
"""

import contextlib
import json
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import mlx.core as mx
import numpy as np
from mlx_lm import load

mx.set_default_device(mx.cpu)


def main():
    for line in sys.stdin:
        where, text = json.loads(line)
        with contextlib.redirect_stdout(sys.stderr):
            model, tokenizer = load(where)
            ids = list(tokenizer.encode(text, add_special_tokens=False))
            logits = np.array(model(mx.array([ids]))[0].astype(mx.float32))
        answer = {"ids": ids, "text": tokenizer.decode(ids), "logits": logits.tolist()}
        print(json.dumps(answer), flush=True)


main()
