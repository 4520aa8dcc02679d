"""Judge a joint tie by transformers, on text that the calibration did not touch.

    python bench/joint/judge.py tinyllama.gguf ./joint --texts .cache/texts [--tokens 6144]

Both models run in transformers, one after the other: the original as transformers itself loads it (a GGUF by its own
conversion), the joint directory by `trust_remote_code=True`, without tiebeam. Prints for each kind of text: nats per
token before and after, the difference with its 95% confidence interval, KL, and the share of equal next tokens.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

KINDS = ("prose", "code", "shakespeare")
LENGTH = 512


def windows(tokenizer: object, path: Path, tokens: int) -> list[list[int]]:
    """Windows of 512 tokens spread over the text, each after the start token."""
    ids = tokenizer(path.read_text(encoding="utf-8"), add_special_tokens=False).input_ids
    start = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    step = LENGTH - len(start)
    found = [[*start, *ids[at : at + step]] for at in range(0, len(ids) - step, step)]
    wanted = max(1, tokens // LENGTH)
    return [found[i * len(found) // wanted] for i in range(wanted)] if len(found) > wanted else found


def original(path: Path) -> torch.nn.Module:
    if path.suffix == ".gguf":
        return AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("original", type=Path)
    parser.add_argument("joint", type=Path)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=6144, help="of each kind")
    options = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(options.joint)
    runs = {kind: windows(tokenizer, options.texts / f"{kind}.test.txt", options.tokens) for kind in KINDS}
    began = time.process_time()

    def states(model: torch.nn.Module, name: str) -> dict[str, list[torch.Tensor]]:
        found: dict[str, list[torch.Tensor]] = {kind: [] for kind in KINDS}
        for kind, several in runs.items():
            for i, ids in enumerate(several):
                inputs = torch.tensor([ids[:-1]])
                with torch.no_grad():
                    found[kind].append(model.base_model(input_ids=inputs, use_cache=False)[0][0])
                print(f"{name}, {kind}: {i + 1} of {len(several)} windows", file=sys.stderr, flush=True)
        return found

    model = original(options.original)
    head, before = model.get_output_embeddings(), states(model, "original")
    del model
    model = AutoModelForCausalLM.from_pretrained(options.joint, trust_remote_code=True, dtype=torch.float32).eval()
    after = states(model, "joint")
    print("| text | tokens | before | after | lost | KL | same next token |\n|---|---:|---:|---:|---:|---:|---:|")
    for kind in KINDS:
        kl, same, losses = [], [], []
        for ids, h, g in zip(runs[kind], before[kind], after[kind], strict=True):
            with torch.no_grad():
                p, q = (m(x).log_softmax(-1) for m, x in ((head, h), (model.get_output_embeddings(), g)))
            targets = torch.tensor(ids[1:])[:, None]
            losses.append(torch.cat([-p.gather(1, targets), -q.gather(1, targets)], 1))
            kl.append((p.exp() * (p - q)).sum(1))
            same.append(p.argmax(1) == q.argmax(1))
        loss = torch.cat(losses).double()
        lost = loss[:, 1] - loss[:, 0]
        interval = 1.96 * float(lost.std()) / len(lost) ** 0.5
        print(
            f"| {kind} | {len(lost):,} | {loss[:, 0].mean():.3f} | {loss[:, 1].mean():.3f} | {lost.mean():+.3f} ± "
            f"{interval:.3f} | {torch.cat(kl).mean():.4f} | {torch.cat(same).float().mean():.1%} |"
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"\n{time.process_time() - began:.0f} s of CPU, {peak:.1f} GiB", file=sys.stderr)
    prompt = tokenizer("The capital of France is", return_tensors="pt")
    print(tokenizer.decode(model.generate(**prompt, max_new_tokens=24, do_sample=False)[0], skip_special_tokens=True))


if __name__ == "__main__":
    main()
