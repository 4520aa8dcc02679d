"""docs/loaders.md, written from a run of the whole matrix."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from pathlib import Path

from peers.matrix import Agreement
from tiebeam.doctor.loaders import LOADERS

PAGE = Path(__file__).parents[2] / "docs" / "loaders.md"
INTRODUCTION = """\
# What loaders do with the pair

`tiebeam doctor` says what each program will do with a checkpoint: tie, keep both matrices, drop the stored head,
start one at random, or refuse. This page is written by `make peers`, which runs the real programs on tiny models of
every architecture that the installed transformers can build, in six stored states (embedding only, both equal, both
different, head only, neither, different row counts) with the flag true, false and absent, at both levels of a nested
config.

| loader | version | examined | how |
|---|---|---|---|
"""
NOTE = """
*architectures* counts the types that the loader ran and for which something was predicted. A state is right only if the
predicted outcome is the observed one. The rules behind the predictions were fitted to such a run
(tests/peers/survey.py), so a new version of a loader is what this table can catch. The lists below name the rest.
"""


def page(agreements: list[Agreement]) -> str:
    text = INTRODUCTION
    for loader in LOADERS:
        how = "run in the tests" if loader.observed else "assumed, not read" if loader.assumed else "read in its source"
        text += f"| {loader.name} | {loader.version or 'main'} | {loader.date} | {how}: {loader.where} |\n"
    text += "\n## Predicted and observed\n\n"
    text += (
        "| loader | version | run | architectures | states right | wrong | types it does not support, as predicted |\n"
    )
    text += "|---|---|---|---|---|---|---|\n"
    for a in agreements:
        row = [a.peer.loader, a.version, a.date, len(a.types), f"{a.right:,}", len(a.wrong), len(a.unsupported)]
        text += f"| {' | '.join(map(str, row))} |\n"
    text += NOTE
    for a in agreements:
        text += f"\n## {a.peer.loader} {a.version}\n"
        wrong = [f"{t} ({case}: predicted {said}, observed {seen})" for t, case, said, seen in a.wrong]
        text += _listed("Wrong predictions", wrong, "none")
        text += _listed("No prediction is made for", sorted(a.silent), "no type")
        text += _listed("The tiny model does not load, so nothing could be compared", sorted(a.cannot_run), "no type")
    return text


def _listed(title: str, names: Iterable[str], otherwise: str) -> str:
    listed = ", ".join(names) or otherwise
    return "\n" + textwrap.fill(f"{title}: {listed}.", 120, break_long_words=False, break_on_hyphens=False) + "\n"
