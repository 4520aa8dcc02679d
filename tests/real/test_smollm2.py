"""SmolLM2-135M-Instruct, a real GGUF, against transformers' own reading of the same file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiebeam
from tiebeam.decode import Decoder

pytest.importorskip("gguf")
pytestmark = [pytest.mark.real, pytest.mark.xdist_group("smollm2")]

SRC = str(Path(tiebeam.__file__).parent.parent)
PASSAGE = (
    "The tie beam is the oldest part of a roof truss. It lies across the building from wall to wall and holds the "
    "feet of the rafters together, so that the weight of the roof cannot push the walls apart."
)
# Both sides are float32 and sum in their own order; logits reach 30.
TOLERANCE = 1e-3


@pytest.fixture(scope="module")
def path(smollm2) -> Path:
    return smollm2


@pytest.fixture(scope="module")
def decoder(path: Path) -> Decoder:
    return Decoder.open(path)


@pytest.fixture(scope="module")
def peer(path: Path) -> Any:
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    return model.eval()


def test_metadata_is_that_of_smollm2(decoder):
    assert decoder.embed is decoder.head, "SmolLM2 is tied"
    assert (decoder.vocab, decoder.spec.dim, len(decoder.spec.layers)) == (49152, 576, 30)
    assert (decoder.spec.heads, decoder.spec.kv_heads, decoder.spec.context) == (9, 3, 8192)
    assert decoder.notes == ()


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("The capital of France is", [504, 3575, 282, 4649, 314]),
        ("Hello, we can use", [19556, 28, 392, 416, 722]),
        ("Hello world! 123", [19556, 905, 17, 216, 33, 34, 35]),
        ("Café déjà vu.", [51, 1939, 2756, 32564, 90, 16739, 386, 101, 30]),
        ("  multiple   spaces", [216, 2701, 256, 5600]),
        ("\n", [198]),
    ],
)
def test_encoding_gives_the_known_tokens(decoder, text, ids):
    assert decoder.encode(text) == ids
    assert decoder.tokenizer.decode(ids) == text


def test_the_tokenizer_equals_that_of_transformers(path, decoder):
    transformers = pytest.importorskip("transformers")
    peer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    code, chat = "def f(x):\n\treturn x**2  # 3.14\n", "<|im_start|>user\nHi<|im_end|>"
    for text in (PASSAGE, code, chat, "漢字 🙂 naïve — “quotes”"):
        assert decoder.encode(text) == peer(text)["input_ids"]


def test_logits_agree_with_transformers(decoder, peer):
    import torch

    tokens = np.array(decoder.encode(PASSAGE))
    with torch.no_grad():
        expected = peer(torch.from_numpy(tokens)[None]).logits[0].numpy()
    found = decoder.logits(tokens)
    assert np.abs(expected).max() > 20
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)
    assert (found.argmax(1) == expected.argmax(1)).all()
    cache = decoder.cache(len(tokens))
    steps = [decoder.unembed(decoder.forward([int(token)], cache)) for token in tokens[:16]]
    np.testing.assert_allclose(np.concatenate(steps), expected[:16], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("prompt", ["Once upon a time, there was", "The three states of matter are"])
def test_thirty_two_greedy_tokens_are_the_same(decoder, peer, prompt):
    import torch

    tokens = decoder.encode(prompt)
    made = peer.generate(torch.tensor([tokens]), max_new_tokens=32, do_sample=False)[0, len(tokens) :].tolist()
    assert len(made) == 32
    assert [token.id for token in decoder.generate(tokens, 32)] == made


def test_perplexity_equals_the_cross_entropy_of_transformers(decoder, peer):
    import torch

    tokens = torch.tensor(decoder.encode(PASSAGE))
    with torch.no_grad():
        expected = torch.nn.functional.cross_entropy(peer(tokens[None, :-1]).logits[0], tokens[1:])
    found = decoder.perplexity(PASSAGE)
    assert found.nats_per_token == pytest.approx(float(expected), abs=1e-4)
    shuffled = " ".join(np.random.default_rng(0).permutation(PASSAGE.split()))
    assert decoder.perplexity(shuffled).nats_per_token > found.nats_per_token + 1


def test_the_cli_generates_paris_without_torch(path):
    program = (
        "import sys\n"
        "from tiebeam.cli import main\n"
        "main(sys.argv[1:])\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "generate", str(path), "The capital of France is", "-n", "24"],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": SRC},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("The capital of France is Paris.")
    assert done.stderr.startswith("24 tokens, ")
