"""Tokens as they are made, each with the logits it was chosen from, taken apart.

A logit is the dot product of the final hidden state with one row of the head's table: length of the one times
length of the other times the cosine between them. All three are sent, so that the page can draw it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tiebeam.errors import BadRequest
from tiebeam.studio.open_models import Reader

MOST_NEW = 512
_one_at_a_time = threading.Lock()


@dataclass(frozen=True, slots=True)
class Request:
    prompt: str
    new: int = 48
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    top: int = 8


def generate(reader: Reader, request: Request) -> Iterator[dict[str, Any]]:
    """Checks everything at once; then one document per token, and a last one that says why it ended."""
    from tiebeam.decode import Sampling

    if not 1 <= request.new <= MOST_NEW:
        raise BadRequest(f"{request.new} new tokens cannot be made here; ask for 1 to {MOST_NEW}")
    sampling = Sampling(request.temperature, request.top_k, request.top_p, request.seed)
    decoder = reader.decoder
    prompt = decoder.encode(request.prompt)
    decoder.generate(prompt, request.new, sampling=sampling)  # checks lengths and ids; runs nothing until asked
    return _stream(reader, prompt, request, sampling)


def _stream(reader: Reader, prompt: list[int], request: Request, sampling: Any) -> Iterator[dict[str, Any]]:
    decoder = reader.decoder
    tokenizer = decoder.tokenizer
    assert tokenizer is not None  # the prompt was encoded by it
    spoken = min(decoder.vocab, tokenizer.size)
    stream, random = tokenizer.stream(prompt), sampling.generator()
    new = prompt
    with _one_at_a_time:
        cache = decoder.cache(len(prompt) + request.new)
        yield {"prompt": [{"id": i, "text": reader.spell(i)} for i in prompt]}
        for made in range(request.new):
            h = decoder.forward(new, cache)[-1:]  # [1, D]
            logits = decoder.unembed(h)[0, :spoken]  # [V]
            token = sampling.choose(logits, random)
            top = _apart(reader, h[0], logits, request.top, token)
            if token in tokenizer.stop_ids:
                yield {"id": token, "text": "", "top": top, "end": True}
                break
            yield {"id": token, "text": stream(token, last=made == request.new - 1), "top": top, "end": False}
            new = [token]
    yield {"done": True}


def _apart(reader: Reader, h: Any, logits: Any, count: int, chosen: int) -> list[dict[str, Any]]:  # [D], [V]
    """The likeliest tokens and the chosen one: logit, probability, and the three factors of the dot product."""
    import numpy as np

    count = min(count, len(logits))
    best = np.argpartition(-logits, count - 1)[:count]
    best = best[np.argsort(-logits[best], kind="stable")]
    if chosen not in best:
        best = np.append(best, chosen)
    shifted = np.exp(logits.astype(np.float64) - float(logits.max()))
    rows = reader.decoder.head.lookup(best.astype(np.int64)).astype(np.float64)  # [C, D]
    length, lengths = float(np.linalg.norm(h)), np.linalg.norm(rows, axis=1)
    cosines = rows @ h.astype(np.float64) / np.maximum(length * lengths, 1e-30)
    return [
        {
            "id": int(i),
            "text": reader.spell(int(i)),
            "logit": float(logits[i]),
            "probability": float(shifted[i] / shifted.sum()),
            "hidden_length": length,
            "row_length": float(lengths[n]),
            "cosine": float(cosines[n]),
            "chosen": int(i) == chosen,
        }
        for n, i in enumerate(best)
    ]
