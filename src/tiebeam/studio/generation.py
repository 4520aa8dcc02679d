"""Generate tokens one by one, each with the logits it was sampled from and their factors.

A logit is the dot product of the final hidden state with one row of the LM head: the norm of the hidden state times the
norm of the row times the cosine between them. It is also a sum over the layers: the direct path, and what each layer
added. Both are sent, so that the page can show them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tiebeam.errors import BadRequest
from tiebeam.studio.loaded_weights import LoadedWeights
from tiebeam.studio.open_models import OpenModel

if TYPE_CHECKING:
    from tiebeam.decode import Decoder, Sampling

MAX_NEW = 512


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    prompt: str
    new: int = 48
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    top: int = 8


def generate(weights: LoadedWeights, model: OpenModel, request: GenerationRequest) -> Iterator[dict[str, Any]]:
    """Check the request, then yield one document per token and {"done": True} at the end."""
    from tiebeam.decode import Sampling

    if not 1 <= request.new <= MAX_NEW:
        raise BadRequest(f"new is {request.new}; the studio generates 1 to {MAX_NEW} new tokens")
    sampling = Sampling(request.temperature, request.top_k, request.top_p, request.seed)
    weights.load(model)
    with weights.running(model) as decoder:
        prompt = decoder.encode(request.prompt)
        decoder.generate(prompt, request.new, sampling=sampling)  # checks lengths and ids; nothing runs yet
    return _stream(weights, model, prompt, request, sampling)


def _stream(
    weights: LoadedWeights, model: OpenModel, prompt: list[int], request: GenerationRequest, sampling: Sampling
) -> Iterator[dict[str, Any]]:
    """The weights are taken for one token at a time: a page that stops reading blocks no other page."""
    from tiebeam.decode.numpy.layer_contributions import layer_contributions

    with weights.running(model) as decoder:
        tokenizer = decoder.tokenizer
        assert tokenizer is not None  # it encoded the prompt
        vocab = min(decoder.vocab, tokenizer.size)
        cache = decoder.cache(len(prompt) + request.new)
    del decoder
    stream, random = tokenizer.stream(prompt), sampling.generator()
    new, states = prompt, list[Any]()
    yield {"prompt": [{"id": i, "text": model.token_text(i)} for i in prompt]}
    for count in range(request.new):
        with weights.running(model) as decoder:
            h = decoder.forward(new, cache, states)[-1:]  # [1, D]
            logits = decoder.unembed(h)[0, :vocab]  # [V]
            token = sampling.choose(logits, random)
            more = {
                "top": _logit_factors(model, decoder, h[0], logits, request.top, token),
                "layers": [float(part) for part in layer_contributions(decoder, states, token)],
            }
        del decoder
        if token in tokenizer.stop_ids:
            yield {"id": token, "text": "", "end": True, **more}
            break
        yield {"id": token, "text": stream(token, last=count == request.new - 1), "end": False, **more}
        new = [token]
    yield {"done": True}


def _logit_factors(
    model: OpenModel, decoder: Decoder, h: Any, logits: Any, count: int, chosen: int
) -> list[dict[str, Any]]:  # [D], [V]
    """The most likely tokens and the chosen one: logit, probability, and the three factors of the dot product."""
    import numpy as np

    count = min(count, len(logits))
    best = np.argpartition(-logits, count - 1)[:count]
    best = best[np.argsort(-logits[best], kind="stable")]
    if chosen not in best:
        best = np.append(best, chosen)
    shifted = np.exp(logits.astype(np.float64) - float(logits.max()))
    rows = decoder.head.lookup(best.astype(np.int64)).astype(np.float64)  # [C, D]
    length, lengths = float(np.linalg.norm(h)), np.linalg.norm(rows, axis=1)
    cosines = rows @ h.astype(np.float64) / np.maximum(length * lengths, 1e-30)
    return [
        {
            "id": int(i),
            "text": model.token_text(int(i)),
            "logit": float(logits[i]),
            "probability": float(shifted[i] / shifted.sum()),
            "hidden_length": length,
            "row_length": float(lengths[n]),
            "cosine": float(cosines[n]),
            "chosen": int(i) == chosen,
        }
        for n, i in enumerate(best)
    ]
