"""Make text from untrusted files safe to print and to show: the one place that escapes it for people.

Names, token texts and config values reach a terminal, a log, a CI annotation or a page only through `visible`. The
studio's pages have the same in static/lib/visible.js. JSON keeps the true text, escaped by JSON.
"""

from __future__ import annotations

import re

from tiebeam._pattern import pattern

# Controls (C0, DEL, C1), line and paragraph separators, controls of the writing direction, invisible annotations and
# tags, and lone surrogates. Joiners and variation selectors stay: scripts and emoji need them.
_UNSAFE = pattern(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
# What the runners of GitHub Actions and Azure Pipelines take from a log as commands: `::error::` at the start of a line
# (after blanks), `##[error]` and `##vso[task]` anywhere in it.
_COMMAND = pattern(r"^([^\S\n]*:):|(##(?:vso)?)\[", re.MULTILINE)


def visible(text: str, keep: str = "") -> str:
    r"""`text` with control characters and commands to a CI runner escaped, so that it can be printed or shown.

    `keep` has the control characters that the text may have: "\n\t" for a text of several lines.

    >>> print(visible("a\x1b[2Jb\nc"))
    a\x1b[2Jb\nc
    >>> print(visible("a\n::error::forged", keep="\n"))
    a
    :\x3aerror::forged
    """
    if text.isprintable() and "::" not in text and "##" not in text:  # no character of _UNSAFE is printable
        return text
    text = _UNSAFE.sub(lambda found: found[0] if found[0] in keep else repr(found[0])[1:-1], text)
    return _COMMAND.sub(lambda found: found[1] + r"\x3a" if found[1] else found[2] + r"\x5b", text)
