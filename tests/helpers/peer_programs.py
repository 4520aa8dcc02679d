"""Run a script of tests/peers in the environment of another program; skip where that environment is missing.

TIEBEAM_PEER_MLX_LM and TIEBEAM_PEER_LLAMA_CPP name an interpreter, LLAMA_CPP the source tree of llama.cpp. Without them
the environments of tests/peers/environments.py are used, if they were built.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

PEERS = Path(__file__).parents[1] / "peers"


def _environments() -> Any:
    try:
        return importlib.import_module("peers.environments")
    except ImportError:
        return None


def _python(variable: str, name: str) -> str:
    built = _environments()
    found = os.environ.get(variable) or (built.python(name) if built else None)
    if not found:
        pytest.skip(f"no environment for {name}: set {variable} or build it with tests/peers/environments.py")
    return str(found)


def _answers(python: str, script: str, lines: list[Any], environment: dict[str, str]) -> list[Any]:
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    done = subprocess.run(
        [python, str(PEERS / script)], input=text, capture_output=True, text=True, timeout=280,
        env={**{k: v for k, v in os.environ.items() if k != "PYTHONPATH"}, **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def mlx_lm(cases: list[tuple[Path, str]]) -> list[dict[str, Any]]:
    """What mlx-lm does with each (directory, stored state); the directory has E and W in expected.st."""
    python = _python("TIEBEAM_PEER_MLX_LM", "mlx_lm")
    _, *answers = _answers(python, "observe_mlx_lm.py", [[str(where), stored, ""] for where, stored in cases], {})
    return [result for _, result in answers]


def mlx_lm_tokens(cases: list[tuple[Path, str]]) -> list[dict[str, Any]]:
    """How mlx-lm encodes, decodes and scores a text, for each (directory, text)."""
    python = _python("TIEBEAM_PEER_MLX_LM", "mlx_lm")
    return _answers(python, "observe_mlx_tokens.py", [[str(where), text] for where, text in cases], {})


def llama_cpp_loads(files: list[Path]) -> list[str]:
    """ "loads" or "refuses" for each GGUF file: llama.cpp's runtime, without its source tree."""
    python = _python("TIEBEAM_PEER_LLAMA_CPP", "transformers4")
    requests = [["load", str(file)] for file in files]
    return _answers(python, "convert_and_load_gguf.py", requests, {"LLAMA_CPP": "not used to load"})


def llama_cpp(requests: list[list[str]]) -> list[str]:
    """Answers of convert_and_load_gguf.py."""
    python = _python("TIEBEAM_PEER_LLAMA_CPP", "transformers4")
    built = _environments()
    tree = os.environ.get("LLAMA_CPP") or (built.llama_cpp() if built else None)
    if not tree:
        pytest.skip("no source of llama.cpp: set LLAMA_CPP or fetch it with tests/peers/environments.py")
    return _answers(python, "convert_and_load_gguf.py", requests, {"LLAMA_CPP": str(tree)})
