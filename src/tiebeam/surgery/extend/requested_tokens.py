"""The tokens that a person asked for: read from a file, and checked before anything else happens."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from tiebeam.errors import BadRequest, UnreadableInput

CHAT = {"chatml": ("<|im_start|>", "<|im_end|>")}
"""The tokens of chat templates."""
_FILE_LIMIT = 64 << 20
_MOST = 1 << 20


def read_token_file(path: str | os.PathLike[str]) -> list[str]:
    """One token per line, UTF-8. Every character of a line but its line break belongs to the token."""
    try:
        if Path(path).stat().st_size > _FILE_LIMIT:
            raise UnreadableInput(f"{path} exceeds the limit of {_FILE_LIMIT:,} bytes for a list of tokens")
        text = Path(path).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableInput(f"{path} is not UTF-8 text (byte {error.start:,})") from None
    except OSError as error:
        raise UnreadableInput(f"{path} cannot be read: {error.strerror or error}") from None
    lines = text.replace("\r\n", "\n").split("\n")
    lines = lines[:-1] if lines[-1] == "" else lines
    seen: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            raise BadRequest(f"{path}: line {number} is empty; write one token per line")
        if line in seen:
            raise BadRequest(f"{path}: line {number} repeats {line!r} of line {seen[line]}")
        seen[line] = number
    if not lines:
        raise BadRequest(f"{path} has no tokens; write one per line")
    return lines


def check_tokens(tokens: Sequence[str]) -> list[str]:
    """Refuse what cannot be a token: nothing, only spaces, the same twice."""
    if isinstance(tokens, str) or not all(isinstance(token, str) for token in tokens):
        raise BadRequest(f"tokens must be a list of texts, not {tokens!r:.80}")
    if len(tokens) > _MOST:
        raise BadRequest(f"{len(tokens):,} tokens exceed the limit of {_MOST:,}")
    seen = set()
    for token in tokens:
        if not token.strip():
            raise BadRequest(f"the token {token!r} is empty or only white space")
        try:
            token.encode()
        except UnicodeEncodeError:
            raise BadRequest(f"the token {token!r} is not valid Unicode") from None
        if token in seen:
            raise BadRequest(f"the token {token!r} is given twice")
        seen.add(token)
    return list(tokens)
