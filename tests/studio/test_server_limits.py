"""Limits of the real server, over sockets: memory, streams, requests that never end, models that change underneath."""

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import numpy as np
import pytest

from helpers.building import write_model
from helpers.studio_files import SRC, tiny_llama, write_run
from tiebeam.studio.http_answers import MAX_STREAMS

from .conftest import start

INNER = 300_000  # a model of 29 MB


def wide_llama(where: Path, seed: int) -> Path:
    """A tiny Llama with a wide MLP, so that its weights can be seen in the memory of the process."""
    tiny_llama(where, seed=seed)
    from safetensors.numpy import load_file

    tensors, config = load_file(where / "model.safetensors"), json.loads((where / "config.json").read_text())
    for name, shape in (("gate", (INNER, 8)), ("up", (INNER, 8)), ("down", (8, INNER))):
        tensors[f"model.layers.0.mlp.{name}_proj.weight"] = np.full(shape, 1e-3, np.float32)
    return write_model(where, tensors, {**config, "intermediate_size": INNER})


@pytest.fixture
def started():
    """start(*arguments) -> (process, address); every process is ended after the test."""
    processes = []

    def begin(*arguments: str):
        process, address = start(*arguments)
        processes.append(process)
        return process, address

    yield begin
    for process in processes:
        process.terminate()
        process.wait(10)


def resident(process: subprocess.Popen) -> int:
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


def generate(address: str, model: str, new: int = 2) -> str:
    body = {"model": model, "prompt": "New York", "new": new}
    return httpx.post(address + "api/generate", json=body, timeout=60).text


def models(address: str) -> dict[str, str]:
    return {model["name"]: model["id"] for model in httpx.get(address + "api/models").json()["models"]}


def loaded(address: str) -> list[str]:
    return [model["name"] for model in httpx.get(address + "api/status").json()["memory"]["loaded"]]


def test_the_weights_of_one_model_stay_in_memory(tmp_path, started):
    for name in "abcde":
        wide_llama(tmp_path / name, seed=ord(name))
    process, address = started("--root", str(tmp_path))
    known = models(address)
    assert '"done":true' in generate(address, known["a"])
    first = resident(process)
    for name in "bcde":
        assert '"done":true' in generate(address, known[name])
        assert loaded(address) == [name]
    assert resident(process) < first + 70_000_000  # the allocator may keep one freed model; all four are 115 MB
    (model,) = httpx.get(address + "api/status").json()["memory"]["loaded"]
    assert model["id"] == known["e"]
    assert 3 * INNER * 8 * 4 < model["bytes"] < 3 * INNER * 8 * 4 + 10_000


def test_memory_sets_the_limit_and_the_model_used_longest_ago_is_dropped(tmp_path, started):
    for name in "abc":
        wide_llama(tmp_path / name, seed=ord(name))
    tiny_llama(tmp_path / "tiny")
    _, address = started("--root", str(tmp_path), "--memory", "60MB")
    known = models(address)
    for name, expected in (("a", "a"), ("b", "ab"), ("a", "ba"), ("c", "ac")):
        generate(address, known[name])
        assert loaded(address) == list(expected)
    assert httpx.get(address + "api/status").json()["memory"]["limit"] == 60_000_000
    _, small = started("--root", str(tmp_path), "--memory", "20 MB")
    answer = httpx.post(small + "api/generate", json={"model": known["a"], "prompt": "New York"})
    assert answer.status_code == 400
    assert "a needs 29 MB of memory to generate, and the limit is 20 MB" in answer.json()["error"]
    assert '"done":true' in generate(small, known["tiny"])


def test_a_generation_whose_model_is_dropped_ends_with_an_error(tmp_path, started):
    """Other pages may be open, and may have stopped reading: they neither keep the weights nor block anyone."""
    for name in "ab":
        wide_llama(tmp_path / name, seed=ord(name))
    _, address = started("--root", str(tmp_path))
    known = models(address)
    body = {"model": known["a"], "prompt": "New York", "new": 60}
    with httpx.stream("POST", address + "api/generate", json=body, timeout=60) as stream:
        lines = stream.iter_lines()
        next(lines)
        assert '"done":true' in generate(address, known["b"])
        assert loaded(address) == ["b"]
        rest = "\n".join(lines)
    assert "the weights of a were dropped when another model was opened" in rest


def test_a_model_that_is_truncated_in_place_is_one_error_answer(tmp_path, started):
    for name in "ab":
        tiny_llama(tmp_path / name, tied=False)
    process, address = started("--root", str(tmp_path))
    known = models(address)
    assert '"done":true' in generate(address, known["a"])
    os.truncate(tmp_path / "a" / "model.safetensors", 1500)
    for path in ("", "/tensors", "/direct?text=New"):
        assert httpx.get(f"{address}api/models/{known['a']}{path}").status_code == 422
    assert "error" in generate(address, known["a"])
    assert '"done":true' in generate(address, known["b"])
    assert process.poll() is None


def test_a_model_that_is_truncated_while_it_generates_does_not_kill_the_process(tmp_path, started):
    tiny_llama(tmp_path / "a", tied=False)
    process, address = started("--root", str(tmp_path))
    body = {"model": models(address)["a"], "prompt": "New York", "new": 60}
    with httpx.stream("POST", address + "api/generate", json=body, timeout=60) as stream:
        lines = stream.iter_lines()
        next(lines)
        os.truncate(tmp_path / "a" / "model.safetensors", 0)
        rest = "\n".join(lines)
    assert "event: error" in rest or '"done":true' in rest
    assert process.poll() is None
    assert httpx.get(address + "api/status").status_code == 200


def test_no_more_streams_than_the_limit_are_opened_at_once(tmp_path, started):
    write_run(tmp_path / "run", tied=True)
    _, address = started("--root", str(tmp_path))
    (run,) = httpx.get(address + "api/runs").json()["runs"]
    host, port = address.removeprefix("http://").rstrip("/").split(":")
    request = f"GET /api/events?runs={run['id']} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode()
    connections = [socket.create_connection((host, int(port)), timeout=20) for _ in range(3 * MAX_STREAMS)]
    try:
        barrier = threading.Barrier(len(connections))

        def send(connection: socket.socket) -> None:
            barrier.wait()
            connection.sendall(request)

        threads = [threading.Thread(target=send, args=(connection,)) for connection in connections]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        answers = [connection.recv(1 << 16).split(b"\r\n")[0] for connection in connections]
    finally:
        for connection in connections:
            connection.close()
    assert answers.count(b"HTTP/1.1 200 OK") == MAX_STREAMS
    assert answers.count(b"HTTP/1.1 400 Bad Request") == len(connections) - MAX_STREAMS


def test_streams_that_nobody_reads_are_given_back(tmp_path, started):
    write_run(tmp_path / "run", tied=True)
    tiny_llama(tmp_path / "model")
    _, address = started("--root", str(tmp_path))
    model = models(address)["model"]
    host, port = address.removeprefix("http://").rstrip("/").split(":")
    body = json.dumps({"model": model, "prompt": "New York", "new": 40}).encode()
    head = f"POST /api/generate HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\nContent-Length: "
    for _ in range(3 * MAX_STREAMS):
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            connection.sendall(f"{head}{len(body)}\r\n\r\n".encode() + body)
    wrong = {"model": model, "prompt": "New York", "new": 10_000}
    for _ in range(2 * MAX_STREAMS):  # a request that fails takes no place either
        answer = httpx.post(address + "api/generate", json=wrong, timeout=60)
        assert answer.status_code == 400
    for _ in range(100):
        if '"done":true' in generate(address, model):
            return
    pytest.fail("the places of closed streams were not given back")


@pytest.fixture
def hasty(tmp_path):
    """A studio that gives a request one second to arrive."""
    shutil.copytree(tiny_llama(tmp_path / "made"), tmp_path / "root" / "model")
    code = (
        "import sys; from pathlib import Path; from tiebeam.studio.server import serve; "
        "from tiebeam.studio.model_list import ModelList; "
        "serve(ModelList((), Path(sys.argv[1])), 0, lambda a: print(a, flush=True), None, request_seconds=1.0)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "root")],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": SRC},
    )  # fmt: skip
    assert process.stdout is not None
    yield process.stdout.readline().strip()
    process.terminate()
    process.wait(10)


POST = b"POST /api/find HTTP/1.1\r\nHost: HOST\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    ("begun", "answer"),
    [
        (b"", b"HTTP/1.1 408"),
        (b"GET /api/sta", b"HTTP/1.1 408"),
        (b"GET /api/status HTTP/1.1\r\nHost: HOST\r\n", b"HTTP/1.1 408"),
        (POST + b"Content-Length: 50\r\n\r\n{", b"HTTP/1.1 408"),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{", b"HTTP/1.1 408"),
        (b"GET /api/status HTTP/1.1\r\nHost: HOST\r\n\r\nGET /api/sta", b"HTTP/1.1 200"),
    ],
    ids=["nothing", "line", "headers", "body", "chunks", "second request"],
)
def test_a_request_that_does_not_arrive_is_closed(hasty, begun, answer):
    host = hasty.removeprefix("http://").rstrip("/")
    name, port = host.split(":")
    with socket.create_connection((name, int(port)), timeout=60) as connection:
        connection.sendall(begun.replace(b"HOST", host.encode()))
        received = b""
        while part := connection.recv(1 << 16):  # until the server closes; else the socket's timeout fails the test
            received += part
    assert received.startswith(answer)
    assert received.count(b"HTTP/1.1 ") == 1


def test_a_slow_answer_is_not_a_slow_request(hasty, tmp_path):
    """An event stream outlives the time that a request has to arrive."""
    write_run(tmp_path / "root" / "run", tied=True)
    (run,) = httpx.get(hasty + "api/runs").json()["runs"]
    with httpx.stream("GET", f"{hasty}api/events?runs={run['id']}", timeout=30) as stream:
        lines = stream.iter_lines()
        assert next(line for line in lines if line.startswith("data: "))
        threading.Event().wait(2.5)
        with open(tmp_path / "root" / "run" / "metrics.jsonl", "a") as file:
            file.write('{"step": 999}\n')
        assert "999" in next(line for line in lines if line.startswith("data: "))


def test_the_head_of_an_event_stream_has_an_end(hasty, tmp_path):
    write_run(tmp_path / "root" / "run", tied=True)
    (run,) = httpx.get(hasty + "api/runs").json()["runs"]
    host = hasty.removeprefix("http://").rstrip("/")
    name, port = host.split(":")
    request = f"HEAD /api/events?runs={run['id']} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    with socket.create_connection((name, int(port)), timeout=20) as connection:
        connection.sendall(request.encode())
        received = b""
        while part := connection.recv(1 << 16):
            received += part
    assert received.startswith(b"HTTP/1.1 200 OK")
