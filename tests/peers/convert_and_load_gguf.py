"""Convert checkpoints with llama.cpp's converter, or load GGUF files with its runtime: one JSON answer per line.

["convert", directory, file.gguf] or ["load", file.gguf]. Runs alone, as observe_llama_cpp.py does.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import observe_llama_cpp


def answer(verb, *arguments):
    if verb == "convert":
        observe_llama_cpp.convert(*map(Path, arguments))
        return "written"
    command = [sys.executable, "-c", observe_llama_cpp.LOAD, *arguments]
    loaded = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return "loads" if loaded.returncode == 0 else "refuses"


def main():
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            result = answer(*json.loads(line))
        except (Exception, SystemExit) as error:  # the converter also exits
            result = f"{type(error).__name__}: {error}"[:300]
        print(json.dumps(result), file=out, flush=True)


if __name__ == "__main__":
    main()
