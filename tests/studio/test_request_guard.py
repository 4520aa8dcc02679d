"""Who may speak to the studio, and what it will never read."""

import pytest
from starlette.testclient import TestClient

from helpers.studio_files import tiny_llama, write_shelf
from tiebeam.cli import main
from tiebeam.errors import BadRequest, UnreadableInput
from tiebeam.studio.app import build
from tiebeam.studio.model_list import Forbidden, NotFound, Shelf
from tiebeam.studio.request_guard import LARGEST_BODY
from tiebeam.studio.server import listen

PORT = 4270


def client(shelf: Shelf | None = None) -> TestClient:
    return TestClient(build(shelf or Shelf(), PORT), base_url=f"http://127.0.0.1:{PORT}")


@pytest.mark.parametrize("host", [f"127.0.0.1:{PORT}", f"localhost:{PORT}", f"[::1]:{PORT}", f"LOCALHOST:{PORT}"])
def test_answers_to_its_own_names(host):
    assert client().get("/api/status", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", f"evil.example:{PORT}", "127.0.0.1", "localhost:1", ""])
def test_refuses_any_other_host_so_that_a_rebound_name_reads_nothing(host):
    for path in ("/api/status", "/", "/api/openapi.json"):
        answer = client().get(path, headers={"host": host})
        assert answer.status_code == 403
        assert "studio answers at" in answer.json()["error"]


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:1", f"https://127.0.0.1:{PORT}"])
def test_refuses_other_origins(origin):
    assert client().get("/api/status", headers={"origin": origin}).status_code == 403
    assert client().post("/api/generate", json={}, headers={"origin": origin}).status_code == 403


def test_accepts_its_own_origin():
    assert client().get("/api/status", headers={"origin": f"http://127.0.0.1:{PORT}"}).status_code == 200


def test_refuses_what_the_browser_says_comes_from_another_site():
    assert client().get("/api/status", headers={"sec-fetch-site": "cross-site"}).status_code == 403
    assert client().get("/api/status", headers={"sec-fetch-site": "same-site"}).status_code == 403
    followed = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert client().get("/calculator.html", headers=followed).status_code == 200
    assert client().get("/api/models", headers=followed).status_code == 403


def test_every_answer_forbids_embedding_and_foreign_scripts():
    for path in ("/", "/api/status", "/nothing", "/studio.css"):
        headers = client().get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert "access-control-allow-origin" not in headers


def test_bounds_the_body_declared_or_not():
    huge = b"x" * (LARGEST_BODY + 1)
    assert client().post("/api/generate", content=huge).status_code == 413

    def trickle():
        yield from (huge[:1000] for _ in range(100))

    headers = {"content-type": "application/json"}
    assert client().post("/api/generate", content=trickle(), headers=headers).status_code == 413
    assert client().get("/api/plan?vocab=" + "1" * 10_000).status_code == 414


@pytest.mark.parametrize("path", ["/..%2f..%2fapp.py", "/../app.py", "/static/../app.py", "/lib/..%2f..%2fapp.py",
                                  "/page.html", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd", "/lib/"])  # fmt: skip
def test_serves_its_own_files_and_no_other(path):
    answer = client().get(path)
    assert answer.status_code == 404
    assert "nothing at" in answer.json()["error"]


def test_reads_only_what_is_named_or_below_the_root(tmp_path):
    root = write_shelf(tmp_path / "root")
    outside = tiny_llama(tmp_path / "outside")
    (root / "link").symlink_to(outside)
    shelf = Shelf((), root)
    assert {entry.name for entry in shelf.models()} == {"models/tied", "models/untied", "models/torn"}
    assert shelf.find(str(root / "models" / "tied")).name == "models/tied"
    for path in (outside, root / "link", root / ".." / "outside", "/etc/passwd", root / "models/../../outside"):
        with pytest.raises(Forbidden, match="reads only what is below"):
            shelf.find(str(path))


def test_a_named_model_is_readable_and_its_neighbour_is_not(tmp_path):
    named, neighbour = tiny_llama(tmp_path / "named"), tiny_llama(tmp_path / "neighbour")
    shelf = Shelf((str(named),))
    assert [entry.where for entry in shelf.models()] == [str(named.resolve())]
    assert shelf.find(str(named)).named
    with pytest.raises(Forbidden):
        shelf.find(str(neighbour))
    with pytest.raises(NotFound):
        shelf.model("../neighbour")


def test_a_path_that_does_not_exist_is_refused_at_the_start(tmp_path):
    with pytest.raises(UnreadableInput, match="does not exist"):
        Shelf((str(tmp_path / "nothing"),))
    with pytest.raises(UnreadableInput, match="not a directory"):
        Shelf((), tmp_path / "nothing")


def test_the_answers_over_http_are_the_same_sentences(tmp_path, capsys):
    http = client(Shelf((), write_shelf(tmp_path)))
    refused = http.post("/api/find", json={"path": "/etc/passwd"})
    assert refused.status_code == 403
    assert "reads only what is below" in refused.json()["error"]
    assert http.get("/api/models/nope").status_code == 404
    with pytest.raises(SystemExit):
        main(["plan", "--vocab", "x", "--dim", "1"])
    said = capsys.readouterr().err.strip().removeprefix("tiebeam: --vocab: ")
    assert http.get("/api/plan?vocab=x&dim=1").json() == {"error": said}


@pytest.mark.parametrize(
    ("body", "kind"), [(b"{", "application/json"), (b"[]", "application/json"), (b'{"path": "x"}', "text/plain")]
)
def test_a_body_that_is_no_json_object_is_refused(body, kind):
    assert client().post("/api/find", content=body, headers={"content-type": kind}).status_code == 400


def test_listens_on_the_loopback_only_and_says_when_a_port_is_taken():
    ear = listen(0)
    try:
        host, port = ear.getsockname()
        assert host == "127.0.0.1"
        with pytest.raises(BadRequest, match=f"port {port} cannot be used"):
            listen(port)
    finally:
        ear.close()
