"""What is proved about new tokens and rows beside the logits of the old ids (surgery/proof.py).

The tokenizer: each new token encodes to its id and decodes back, and old text encodes to the same ids. The rows: how
much probability they take from the old ones on a text, and the KL divergence from the same model with the new rows
masked. Both would be 0 for rows that are never predicted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tiebeam.checkpoint import Checkpoint
from tiebeam.errors import TiebeamError
from tiebeam.surgery.loss_effect import built_in_passage
from tiebeam.surgery.proof import probe_tokens, too_large_to_run
from tiebeam.tokenizer import Tokenizer
from tiebeam.tokenizer.add_tokens import NewToken

if TYPE_CHECKING:
    from tiebeam.decode.engine import Ids

WARN_ABOVE = 0.01
_TEXT_TOKENS = 256
MORE_TEXT = (
    "def f(x):\n\treturn x**2  # 3.14\n\n  naïve café, 漢字 🙂 — “quotes”, <tag attr='1'>&amp;</tag> ABC def 0123456789"
)


def tokenizer_problem(after: Tokenizer, tokens: Sequence[NewToken], before: Tokenizer | None = None) -> str | None:
    """What is wrong with a tokenizer that has the new tokens; None if nothing is. `before` is the one without them."""
    for token in tokens:
        found = list(after.backend.encode(token.text, add_special_tokens=False).ids)
        if found != [token.id]:
            return f"{token.text!r} encodes to {found[:8]}, not to [{token.id}]"
        back = after.decode([token.id])
        if back != token.text:
            return f"{token.text!r} decodes to {back!r}"
    if before is None:
        return None
    for text in (*built_in_passage().splitlines(), *MORE_TEXT.splitlines()):
        if any(token.text in text for token in tokens):
            continue
        if after.encode(text) != before.encode(text):
            return f"the old text {text[:40]!r} encodes to other ids"
    return None


def new_row_effect(
    result: Checkpoint, *, kept: Ids, new: Ids, engine: str = "auto", device: str | None = None
) -> Mapping[str, Any]:
    """The probability that the rows `new` take on a text, and the KL divergence from the model without them."""
    import numpy as np

    from tiebeam.decode import open_engine

    short = too_large_to_run(result)
    if short:
        return {"why": short}
    try:
        model = open_engine(result, engine=engine, device=device)
        tokens, on = _text(model, kept), "a built-in passage"
        if tokens is None:
            tokens, on = kept[probe_tokens(len(kept))].tolist(), "probe tokens"
        logits = model.logits(tokens[: min(_TEXT_TOKENS, model.spec.context)]).astype(np.float64)  # [T, V]
    except TiebeamError as error:
        return {"why": str(error)}
    old = np.logaddexp.reduce(logits[:, kept], axis=1)
    both = np.logaddexp(old, np.logaddexp.reduce(logits[:, new], axis=1))
    taken = 1 - np.exp(old - both)
    return {"probability": float(taken.mean()), "kl": float((both - old).mean()), "tokens": len(logits), "on": on}


def _text(model: Any, kept: Ids) -> list[int] | None:
    """The passage as old tokens; None without a tokenizer, or if it is hardly more than unknown tokens."""
    if model.speller is None:
        return None
    tokens = [int(i) for i in model.encode(built_in_passage())]
    good = set(kept.tolist())
    tokens = [i for i in tokens if i in good]
    return tokens if len(set(tokens)) >= 16 else None
