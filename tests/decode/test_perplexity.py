"""Perplexity and divergence, compared with torch's cross-entropy."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from helpers.lively_models import lively, save, sentence
from helpers.tiny_tokenizers import TEXT, write_tokenizer
from tiebeam.decode import Decoder, Table, divergence
from tiebeam.decode import perplexity as module
from tiebeam.decode.perplexity import perplexity
from tiebeam.errors import BadRequest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = save(lively("llama", vocab_size=300), tmp_path_factory.mktemp("llama"))
    write_tokenizer(path, size=300)
    return path


@pytest.fixture(scope="module")
def decoder(where: Path) -> Decoder:
    return Decoder.open(where)


def losses(tokens: np.ndarray, context: int, stride: int) -> list[float]:
    """The loss of every token but the first, computed by torch in the first window that has it as a target."""
    model = lively("llama", vocab_size=300)
    found: dict[int, float] = {}
    for begin in range(0, len(tokens) - 1, stride):
        window = torch.from_numpy(tokens[begin : begin + context + 1])
        with torch.no_grad():
            logits = model(window[None, :-1]).logits[0]
        loss = torch.nn.functional.cross_entropy(logits, window[1:], reduction="none")
        for i, value in enumerate(loss.tolist()):
            found.setdefault(begin + 1 + i, value)
    assert sorted(found) == list(range(1, len(tokens)))
    return list(found.values())


@pytest.mark.parametrize(("context", "stride"), [(64, 64), (16, 16), (16, 5), (16, 1), (7, 7)])
def test_nats_per_token_equal_torchs_cross_entropy(decoder, context, stride):
    tokens = sentence(50, vocab=300)
    found = perplexity(decoder, tokens, context=context, stride=stride)
    assert found.tokens == 49
    assert found.bytes is found.bits_per_byte is None
    assert found.nats_per_token == pytest.approx(np.mean(losses(tokens, context, stride)), abs=1e-5)
    assert found.perplexity == pytest.approx(math.exp(found.nats_per_token))


def test_a_text_longer_than_the_context_is_run_in_windows(decoder):
    tokens = sentence(150, vocab=300)  # the context is 64
    assert perplexity(decoder, tokens).nats_per_token == pytest.approx(np.mean(losses(tokens, 64, 64)), abs=1e-5)


def test_bits_per_byte_count_the_bytes_that_were_scored(decoder):
    found = decoder.perplexity(TEXT[2])
    tokens = decoder.encode(TEXT[2])
    first = decoder.tokenizer.decode(tokens[:1])
    assert found.tokens == len(tokens) - 1
    assert found.bytes == len(TEXT[2].encode()) - len(first.encode())
    assert found.bits_per_byte == pytest.approx(found.nats_per_token * found.tokens / math.log(2) / found.bytes)


def test_with_a_start_token_every_byte_counts(where, decoder):
    from dataclasses import replace

    tokenizer = replace(decoder.tokenizer, start=(0,))
    assert tokenizer.encode_with_bytes(TEXT[0]) == ([0, *decoder.encode(TEXT[0])], 0)


def test_blocks_of_logits_do_not_change_the_sum(decoder, monkeypatch):
    tokens = sentence(50, vocab=300)
    whole = perplexity(decoder, tokens)
    monkeypatch.setattr(module, "_LOGITS", 700)  # two rows at a time
    assert perplexity(decoder, tokens).nats_per_token == pytest.approx(whole.nats_per_token, abs=1e-6)


def test_a_model_does_not_diverge_from_itself(decoder):
    found = divergence(decoder, decoder, TEXT[1])
    assert found.kl == pytest.approx(0.0, abs=1e-9)
    assert found.agreement == 1.0
    assert found.before == found.after
    assert found.before.nats_per_token == pytest.approx(decoder.perplexity(TEXT[1]).nats_per_token, abs=1e-6)


def test_divergence_is_the_mean_kl(decoder):
    table = np.array(decoder.head.rows)
    other = decoder.with_tables(decoder.embed, Table(table + 0.05 * np.roll(table, 1, axis=0)))
    tokens = sentence(40, vocab=300)
    found = divergence(decoder, other, tokens)
    p, q = (torch.from_numpy(d.logits(tokens[:-1]).astype(np.float64)).log_softmax(-1) for d in (decoder, other))
    expected = torch.nn.functional.kl_div(q, p, log_target=True, reduction="sum") / 39
    assert found.kl == pytest.approx(float(expected), rel=1e-4)
    assert found.agreement == pytest.approx(float((p.argmax(1) == q.argmax(1)).double().mean()))
    assert found.after.nats_per_token == pytest.approx(perplexity(other, tokens).nats_per_token, abs=1e-6)
    assert set(found.to_dict()) == {"kl", "agreement", "before", "after"}


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda d: d.perplexity([5]), "a text of one token has nothing to predict"),
        (lambda d: d.perplexity(""), "the prompt is empty"),
        (lambda d: d.perplexity([1, 2], context=65), "context=65 is outside 1 to 64"),
        (lambda d: d.perplexity([1, 2], context=8, stride=9), "stride=9 is outside 1 to 8"),
        (lambda d: d.perplexity([1, 300]), "token id 300 is outside the vocabulary of 300"),
        (
            lambda d: divergence(d, d.with_tables(d.embed, Table(np.ones((5, 32), np.float32))), [1, 2]),
            "a vocabulary of 300 tokens cannot be compared with one of 5",
        ),
    ],
)
def test_invalid_requests_are_refused(decoder, ask, message):
    with pytest.raises(BadRequest, match=message):
        ask(decoder)
