"""The studio's API: valid requests of every endpoint in openapi.py, damaged, sent to the real server in this process.

A case is one request as bytes, and what the studio is to find in a run: its metrics and its settings. Refused is an
answer of 400 and above; an answer of 500, no answer at all, and a server that stopped are crashes. The server runs in
a thread, so that the worker's limits on memory and time hold for it.
"""

from __future__ import annotations

import atexit
import json
import re
import shutil
import socket
import tempfile
import threading
from contextlib import suppress
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from cases import Case
from mutations import RAW, VALUES, mutate_bytes, mutate_json, pick_count

from helpers.studio_files import tiny_llama, write_run
from tiebeam.errors import BadRequest
from tiebeam.studio.openapi import DESCRIPTION

FILE = ""
REQUEST, METRICS, RUN = "request", "metrics.jsonl", "run.json"
REQUEST_SECONDS = 0.2  # a request that never ends is part of the game, and must not take long
HOST = b"STUDIO"  # stands for 127.0.0.1:PORT, which differs from run to run
TARGETS = ("", "*", "/", "//", "/..", "/%2e%2e/", "/api", "/api/", "/api/models/%00", "/api/models/" + "a" * 9000)
TEXTS = ("", "0", "-1", "1e999", "NaN", "%00", "%ff", "%ed%a0%80", "%0d%0aX:y", "9" * 4400, "x" * 5000, "a,b", ",,",
         "1," * 300 + "1", "٣", "²", "%F0%9F%98%80", "\\", "%25", "[]", "{}", "null", "True", "+", "k")  # fmt: skip
METHODS = ("GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "get", "X" * 300)
HEADERS = ("Host: evil", "Host: STUDIO", "Origin: null", "Origin: http://STUDIO", "Content-Length: -1",
           "Content-Length: 99999999999999999999", "Content-Length: 70000", "Content-Length: 3", "Connection: close",
           "Transfer-Encoding: chunked", "Transfer-Encoding: gzip", "Expect: 100-continue", "Upgrade: websocket",
           "Connection: Upgrade", "Content-Type: text/plain", "Content-Type: application/json; charset=utf-7",
           "Sec-Fetch-Site: cross-site", "Range: bytes=0-1", "Accept-Encoding: gzip", "X: " + "y" * 20000, ": x",
           "é: é", "Content-Encoding: gzip")  # fmt: skip


@cache
def studio() -> tuple[int, Path, dict[str, str]]:
    """Start the server once: its port, the directory of its run, and the ids that stand in requests by a name."""
    from tiebeam.studio.model_list import ModelList
    from tiebeam.studio.server import serve

    root = Path(tempfile.mkdtemp(prefix="fuzz-studio-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    tiny_llama(root / "tied")
    tiny_llama(root / "untied", tied=False)
    run = write_run(root / "run", tied=True)
    models, address = ModelList((), root), []
    started = threading.Event()

    def announce(at: str) -> None:
        address.append(int(at.rstrip("/").rpartition(":")[2]))
        started.set()

    arguments = {"request_seconds": REQUEST_SECONDS}
    threading.Thread(target=serve, args=(models, 0, announce, None), kwargs=arguments, daemon=True).start()
    started.wait(60)
    ids = {f"ID-{source.name}": source.id for source in (*models.models(), *models.runs())}
    return address[0], run, {**ids, "ROOT": str(root)}


def seeds() -> list[Case]:
    found = []
    for path, operations in DESCRIPTION["paths"].items():
        for method, operation in operations.items():
            found += [_seed(method, path, operation, model) for model in ("tied", "untied")]
    run = write_run(Path(tempfile.mkdtemp(prefix="fuzz-run-")), tied=True)
    files = {METRICS: (run / METRICS).read_bytes(), RUN: (run / RUN).read_bytes()}
    shutil.rmtree(run)
    return [{REQUEST: request, **files} for request in dict.fromkeys(found)]


def _seed(method: str, path: str, operation: dict[str, Any], model: str) -> bytes:
    kind = "run" if path.startswith("/api/runs") else model
    values = {"vocab": "32k", "dim": "64", "trunk": "1M", "text": "New%20York", "k": "3", "runs": "ID-run"}
    named = [parameter["name"] for parameter in operation["parameters"] if parameter["in"] == "query"]
    query = "&".join(f"{name}={values[name]}" for name in named if name in values)
    body = b""
    if "requestBody" in operation:
        generation = {"model": f"ID-{model}", "prompt": "New York", "new": 3, "temperature": 0.5, "top_k": 3,
                      "top_p": 0.9, "seed": 1, "top": 3}  # fmt: skip
        bodies = {"find": {"path": f"ROOT/{model}"}, "what-if": {"text": "New York City is the big town . " * 80}}
        body = json.dumps(bodies.get(path.rsplit("/", 1)[1], generation)).encode()
    target = path.replace("{id}", f"ID-{kind}") + (f"?{query}" if query else "")
    head = f"{method.upper()} {target} HTTP/1.1\r\nHost: STUDIO\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if body else ""
    return head.encode() + b"\r\n" + body


def mutate(case: Case, rng: Random) -> Case:
    for _ in range(pick_count(rng)):
        if rng.random() < 0.2:
            name = rng.choice((METRICS, RUN))
            case[name] = _mutate_lines(case[name], rng) if name == METRICS else mutate_json(case[name], rng)
        else:
            case[REQUEST] = _mutate_request(case[REQUEST], rng)
    return case


def _mutate_lines(raw: bytes, rng: Random) -> bytes:
    lines = raw.split(b"\n")
    at = rng.randrange(len(lines))
    lines[at] = rng.choice((mutate_json, mutate_bytes))(lines[at], rng)
    return b"\n".join(lines)


def _mutate_request(raw: bytes, rng: Random) -> bytes:
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *headers = head.decode("latin-1").split("\r\n")
    method, _, rest = first.partition(" ")
    target, _, version = rest.rpartition(" ")
    match rng.randrange(9):
        case 0:
            method = rng.choice(METHODS)
        case 1:
            target = rng.choice((*TARGETS, target + "/", target.upper(), target * 3, target.replace("ID-", "")))
        case 2 | 3:  # one value, in the path or the query
            parts = re.split(r"([/?&=])", target)
            parts[rng.randrange(len(parts))] = rng.choice((*TEXTS, *map(str, VALUES[:40]))).replace(" ", "%20")
            target = "".join(parts)
        case 4:
            headers.insert(rng.randrange(len(headers) + 1), rng.choice(HEADERS))
        case 5 if headers:
            del headers[rng.randrange(len(headers))]
        case 6 if rng.random() < 0.2:
            return mutate_bytes(raw, rng)
        case 7 if rng.random() < 0.2:
            version = rng.choice(("HTTP/1.0", "HTTP/2", "HTTP/9.9", ""))
        case _ if body:
            body = mutate_json(body, rng) if rng.random() < 0.9 else rng.choice(list(RAW.values())).encode()
            if rng.random() < 0.95:
                headers = [h for h in headers if not h.lower().startswith("content-length")]
                headers.append(f"Content-Length: {len(body)}")
        case _:
            target += rng.choice(("?", "&", "#", ";")) + "k=" + rng.choice(TEXTS)
    return "\r\n".join([f"{method} {target} {version}", *headers]).encode("latin-1", "replace") + b"\r\n\r\n" + body


def read(directory: Path) -> object:
    port, run, names = studio()
    for name in (METRICS, RUN):
        shutil.copy(directory / name, run / name)
    raw = (directory / REQUEST).read_bytes().replace(HOST, f"127.0.0.1:{port}".encode())
    for name, value in names.items():
        raw = raw.replace(name.encode(), value.encode())
    raw = re.sub(rb"(?i)(content-length: )\d{1,4}(?=\r\n)", lambda found: found[1] + _length(raw), raw, count=1)
    status, answer = _answer(port, raw)
    if status >= 500 and status != 501:
        raise AssertionError(f"{status}: {answer[:500]!r}")
    if status >= 400:
        raise BadRequest(f"status {status}")
    if answer.startswith(b"{"):
        json.loads(answer, parse_constant=_not_json)
    return status


def _length(raw: bytes) -> bytes:
    """The true length of the body: the names in it have been replaced by ids of another length."""
    return str(len(raw.partition(b"\r\n\r\n")[2])).encode()


def _not_json(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


_PATIENCE = 120  # seconds: the first answer waits for imports, which atheris instruments one by one


def _answer(port: int, raw: bytes) -> tuple[int, bytes]:
    """Status and body of the first answer. Of an event stream, what is there after its first event."""
    with socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE) as connection:
        with suppress(OSError):  # it may be refused before all of it is sent
            connection.sendall(raw)
        received = b""
        while True:
            try:
                part = connection.recv(1 << 16)
            except ConnectionResetError:
                part = b""
            received = re.sub(rb"^HTTP/1\.1 1\d\d .*\r\n\r\n", b"", received + part)  # 100 Continue is not the answer
            head, found, body = received.partition(b"\r\n\r\n")
            if not part or (found and _complete(head, body, raw)):
                break
    if not received:
        raise BadRequest("closed without an answer")  # what is no HTTP is not answered
    status = re.match(rb"HTTP/1\.1 (\d{3})", received)
    assert status is not None, f"not an answer: {received[:200]!r}"
    return int(status[1]), body


def _complete(head: bytes, body: bytes, request: bytes) -> bool:
    if request.startswith(b"HEAD "):
        return True
    if b"text/event-stream" in head:
        return b"\n\n" in body and (b"/api/events" in request or b'"done"' in body or b"event: error" in body)
    length = re.search(rb"(?i)content-length: (\d+)", head)
    return length is not None and len(body) >= int(length[1])
