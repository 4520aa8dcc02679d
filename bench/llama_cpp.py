"""A new token of SmolLM2 (Q4_1, Q8_0) by our decoder, against llama.cpp on the same file, with as many threads.

python bench/llama_cpp.py [--quick] [--json]

llama.cpp computes on the packed weights; ours are float32 in memory, which is four to six times as much to read. So
this is a figure without a goal. It runs in a process of its own that waits between its turns.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

from dequantize import models
from harness import Bench, Row, Seconds, main, peers, timed

from tiebeam.decode import Decoder

NEW = 16
PROMPT = [504, 2241, 282, 260, 905, 314]
SERVE = """
import os, sys
out = os.fdopen(os.dup(1), "w")
quiet = os.open(os.devnull, os.O_WRONLY)
os.dup2(quiet, 1)
os.dup2(quiet, 2)
sys.path.append(sys.argv[1])
import xllamacpp
params = xllamacpp.CommonParams()
params.model.path = sys.argv[2]
params.n_ctx, params.n_parallel, params.warmup = 256, 1, False
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(sys.argv[3])
server = xllamacpp.Server(params)
for line in sys.stdin:
    asked = {"prompt": "The quick brown fox jumps", "max_tokens": int(line), "temperature": 0.0, "ignore_eos": True}
    print(server.handle_completions(asked)["timings"]["predicted_per_token_ms"], file=out, flush=True)
os._exit(0)
"""


def rows(bench: Bench) -> Iterator[Row]:
    try:
        where = peers.directory("xllamacpp")
    except peers.Missing as reason:
        bench.say(str(reason))
        return
    name, path = next(models(bench))
    decoder = Decoder.open(path)
    given = [sys.executable, "-c", SERVE, str(where), str(path), str(bench.threads)]
    with subprocess.Popen(given, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:

        def theirs() -> Seconds:
            assert server.stdin is not None
            assert server.stdout is not None
            server.stdin.write(f"{NEW}\n")
            server.stdin.flush()
            return Seconds(float(server.stdout.readline()) / 1000)

        def ours() -> Seconds:
            stream = decoder.generate(PROMPT, NEW)
            next(stream)
            start = time.perf_counter()
            made = sum(1 for _ in stream)
            return Seconds((time.perf_counter() - start) / made)

        try:
            found = bench.measure({"theirs": theirs, "ours": ours}, "theirs", bench.budget * 0.5)
        finally:
            server.kill()
    yield timed(f"{name}, each new token, speed", found, "ours", "llama.cpp on the packed weights", speed=True,
                limited_by="reading float32 weights")  # fmt: skip


if __name__ == "__main__":
    main(rows)
