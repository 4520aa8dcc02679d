"""What llama.cpp does with each checkpoint: its converter, then its runtime. One JSON line per directory.

Runs alone in an environment that has torch, transformers and xllamacpp (bindings that carry the runtime), with the
source tree of the same llama.cpp in LLAMA_CPP: it imports nothing of the project. The converter is the real one; only
the tokenizer step is replaced, since a tiny model has no tokenizer of its own. The runtime loads the file in a child
process, because a failed load may abort.
"""

import json
import logging
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

SOURCE = Path(os.environ["LLAMA_CPP"])
os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(SOURCE))
sys.path.insert(1, str(SOURCE / "gguf-py"))

LOAD = """
import os, sys
quiet = os.open(os.devnull, os.O_WRONLY)
os.dup2(quiet, 1)
import xllamacpp
params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.n_ctx = 64
params.warmup = False
params.cpuparams.n_threads = 1
server = xllamacpp.Server(params)
os._exit(0)
"""


def write_tokens(model):
    """A GPT-2 style vocabulary of the model's size: one token per id."""
    hparams = model.hparams
    size = hparams.get("vocab_size") or 96
    tokens = [f"<{i}>" if i > 60 else chr(97 + i % 26) + str(i) for i in range(size)]
    writer = model.gguf_writer
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * size)
    writer.add_token_merges(["a b"])


def converter_class(where):
    from conversion import ModelBase, ModelType, get_model_architecture, get_model_class

    hparams = ModelBase.load_hparams(Path(where), False)
    return get_model_class(get_model_architecture(hparams, ModelType.TEXT))


def convert(where, target, extra=False):
    """Convert; with `extra`, the file also gets an output.weight that the converter would not write."""
    import gguf
    import numpy as np
    import torch

    cls = converter_class(where)

    def prepare_tensors(self):
        cls.prepare_tensors(self)
        if extra:
            self.gguf_writer.add_tensor("output.weight", np.zeros((96, 32), np.float32))

    methods = {"set_vocab": write_tokens, "prepare_tensors": prepare_tensors, "model_arch": cls.model_arch}
    patched = type(cls.__name__, (cls,), methods)
    tokenizer = Path(where) / "tokenizer.json"  # Gemma 3 counts the tokens there
    tokenizer.write_text(json.dumps({"model": {"vocab": {str(i): i for i in range(96)}}, "added_tokens": []}))
    with torch.inference_mode():
        patched(Path(where), gguf.LlamaFileType.ALL_F32, target).write()


def describe(where):
    """What the converter's source says of this type: its GGUF architecture, whether that has an output.weight, and
    whether the class treats the head in any way of its own."""
    import inspect

    import gguf

    try:
        cls = converter_class(where)
    except BaseException:
        return {}
    own = [c for c in cls.__mro__ if c.__name__ not in ("ModelBase", "TextModel", "MmprojModel", "object", "ABC")]
    return {
        "arch": gguf.MODEL_ARCH_NAMES[cls.model_arch],
        "maps_output": gguf.MODEL_TENSOR.OUTPUT in gguf.MODEL_TENSORS[cls.model_arch],
        "touches_head": any("lm_head" in inspect.getsource(c) for c in own),
    }


def tensors_of(path):
    import gguf

    return {t.name: t.data for t in gguf.GGUFReader(path).tensors}


def observe(where, stored):
    import numpy as np
    from safetensors.numpy import load_file

    expected = load_file(Path(where) / "expected.st")
    target = Path(where) / "converted.gguf"
    try:
        try:
            convert(where, target, extra=stored == "extra")
        finally:
            (Path(where) / "tokenizer.json").unlink(missing_ok=True)
    except BaseException as error:  # the converter also exits
        text = f"{type(error).__name__}: {error}"
        supported = "not supported" not in text and "NotImplementedError" not in text
        return {"converter": "refuses" if supported else "not supported", "runtime": None, "why": text[:300]}
    written = tensors_of(target)
    held = {}
    for name in ("token_embd.weight", "output.weight"):
        if name in written:
            value = written[name].reshape(-1, written[name].shape[-1])
            held[name] = next(
                (k for k, v in expected.items() if value.shape == v.shape and np.array_equal(value, v)), "other"
            )
    loaded = subprocess.run([sys.executable, "-c", LOAD, str(target)], capture_output=True, text=True, timeout=120)
    target.unlink()
    lines = [line for line in loaded.stderr.splitlines() if "error" in line.lower() or "missing" in line.lower()]
    return {
        "converter": "writes",
        "held": held,
        "runtime": "loads" if loaded.returncode == 0 else "refuses",
        "why": " | ".join(lines)[:300],
    }


def main():
    logging.disable(logging.CRITICAL)
    print(json.dumps({"xllamacpp": version("xllamacpp"), "gguf": version("gguf")}), flush=True)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        where, stored, _ = json.loads(line)
        try:
            result = observe(where, stored) | describe(where)
        except Exception as error:
            result = {"converter": "error", "why": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps([where, result]), file=out, flush=True)


if __name__ == "__main__":
    main()
