"""Readable text of single tokens, in any script."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tiebeam.tokenizer import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")  # SentencePiece's tokens of single bytes


def token_text(tokenizer: Tokenizer, id: int) -> str | None:
    """The text of a token with its leading space; a part of a character as its bytes, `<0xE6><0x9D>`; None if there is
    no such id."""
    piece = tokenizer.backend.id_to_token(id)
    if not piece:
        return None if piece is None else ""
    text = tokenizer.decode([id])
    if not text or "�" in text:
        if piece == "<0x20>":  # decoding drops a leading space
            return " "
        return str(piece) if _BYTE_TOKEN.fullmatch(piece) else _as_bytes(str(piece)) or str(piece)
    return " " + text if piece[0] in "Ġ▁" and not text[0].isspace() else text


def _as_bytes(piece: str) -> str | None:
    """The bytes of a piece of byte-level BPE; None if it is no such piece."""
    codes = _byte_characters()
    if not all(character in codes for character in piece):
        return None
    return "".join(f"<0x{codes[character]:02X}>" for character in piece)


@cache
def _byte_characters() -> dict[str, int]:
    """How byte-level BPE writes each byte: printable ones as themselves, the others as characters from 256 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}
