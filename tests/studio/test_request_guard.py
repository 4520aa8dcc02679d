"""Host, origin and size checks of the studio, and the paths that it may read."""

import pytest
from starlette.testclient import TestClient

from helpers.studio_files import tiny_llama, write_studio_root
from tiebeam.cli import main
from tiebeam.errors import BadRequest, UnreadableInput
from tiebeam.studio.app import build
from tiebeam.studio.model_list import Forbidden, ModelList, NotFound
from tiebeam.studio.request_guard import MAX_BODY
from tiebeam.studio.server import listen

PORT = 4270


def client(models: ModelList | None = None) -> TestClient:
    return TestClient(build(models or ModelList(), PORT), base_url=f"http://127.0.0.1:{PORT}")


@pytest.mark.parametrize("host", [f"127.0.0.1:{PORT}", f"localhost:{PORT}", f"[::1]:{PORT}", f"LOCALHOST:{PORT}"])
def test_its_own_host_names_are_accepted(host):
    assert client().get("/api/status", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", f"evil.example:{PORT}", "127.0.0.1", "localhost:1", ""])
def test_other_hosts_are_rejected_against_dns_rebinding(host):
    for path in ("/api/status", "/", "/api/openapi.json"):
        answer = client().get(path, headers={"host": host})
        assert answer.status_code == 403
        assert "studio answers only at" in answer.json()["error"]


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:1", f"https://127.0.0.1:{PORT}"])
def test_other_origins_are_rejected(origin):
    assert client().get("/api/status", headers={"origin": origin}).status_code == 403
    assert client().post("/api/generate", json={}, headers={"origin": origin}).status_code == 403


def test_its_own_origin_is_accepted():
    assert client().get("/api/status", headers={"origin": f"http://127.0.0.1:{PORT}"}).status_code == 200


def test_cross_site_requests_are_rejected_except_navigation():
    assert client().get("/api/status", headers={"sec-fetch-site": "cross-site"}).status_code == 403
    assert client().get("/api/status", headers={"sec-fetch-site": "same-site"}).status_code == 403
    followed = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert client().get("/calculator.html", headers=followed).status_code == 200
    assert client().get("/api/models", headers=followed).status_code == 403


def test_a_report_is_sandboxed_without_the_origin_of_the_studio(tmp_path):
    root = write_studio_root(tmp_path)
    (root / "runs" / "report.html").write_text("<p>report")
    http = client(ModelList((), root))
    (found,) = http.get("/api/runs").json()["comparisons"]
    answer = http.get(f"/reports/{found['id']}.html")
    assert answer.text == "<p>report"
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline';")
    assert "allow-same-origin" not in policy
    assert "connect-src" not in policy
    assert "frame-ancestors 'none'" in policy


def test_every_response_has_security_headers():
    for path in ("/", "/api/status", "/nothing", "/studio.css"):
        headers = client().get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert "access-control-allow-origin" not in headers


def test_body_and_url_sizes_are_limited():
    huge = b"x" * (MAX_BODY + 1)
    assert client().post("/api/generate", content=huge).status_code == 413

    def trickle():
        yield from (huge[:1000] for _ in range(100))

    headers = {"content-type": "application/json"}
    assert client().post("/api/generate", content=trickle(), headers=headers).status_code == 413
    assert client().get("/api/plan?vocab=" + "1" * 10_000).status_code == 414


@pytest.mark.parametrize("path", ["/..%2f..%2fapp.py", "/../app.py", "/static/../app.py", "/lib/..%2f..%2fapp.py",
                                  "/page.html", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd", "/lib/"])  # fmt: skip
def test_only_known_files_are_served(path):
    answer = client().get(path)
    assert answer.status_code == 404
    assert "no page or endpoint at" in answer.json()["error"]


def test_only_models_below_the_root_can_be_read(tmp_path):
    root = write_studio_root(tmp_path / "root")
    outside = tiny_llama(tmp_path / "outside")
    (root / "link").symlink_to(outside)
    models = ModelList((), root)
    assert {entry.name for entry in models.models()} == {"models/tied", "models/untied", "models/torn"}
    assert models.find(str(root / "models" / "tied")).name == "models/tied"
    for path in (outside, root / "link", root / ".." / "outside", "/etc/passwd", root / "models/../../outside"):
        with pytest.raises(Forbidden, match="reads only models below"):
            models.find(str(path))


def test_a_named_model_can_be_read_and_its_sibling_cannot(tmp_path):
    named, neighbour = tiny_llama(tmp_path / "named"), tiny_llama(tmp_path / "neighbour")
    models = ModelList((str(named),))
    assert [entry.where for entry in models.models()] == [str(named.resolve())]
    assert models.find(str(named)).named
    with pytest.raises(Forbidden):
        models.find(str(neighbour))
    with pytest.raises(NotFound):
        models.model("../neighbour")


def test_a_missing_path_is_an_error_at_start(tmp_path):
    with pytest.raises(UnreadableInput, match="does not exist"):
        ModelList((str(tmp_path / "nothing"),))
    with pytest.raises(UnreadableInput, match="not a directory"):
        ModelList((), tmp_path / "nothing")


def test_http_errors_equal_the_messages_of_the_cli(tmp_path, capsys):
    http = client(ModelList((), write_studio_root(tmp_path)))
    refused = http.post("/api/find", json={"path": "/etc/passwd"})
    assert refused.status_code == 403
    assert "reads only models below" in refused.json()["error"]
    assert http.get("/api/models/nope").status_code == 404
    with pytest.raises(SystemExit):
        main(["plan", "--vocab", "x", "--dim", "1"])
    said = capsys.readouterr().err.strip().removeprefix("tiebeam: --vocab: ")
    assert http.get("/api/plan?vocab=x&dim=1").json() == {"error": said}


@pytest.mark.parametrize(
    ("body", "kind"), [(b"{", "application/json"), (b"[]", "application/json"), (b'{"path": "x"}', "text/plain")]
)
def test_a_body_that_is_not_a_json_object_is_rejected(body, kind):
    assert client().post("/api/find", content=body, headers={"content-type": kind}).status_code == 400


def test_listens_on_loopback_only_and_reports_a_port_in_use():
    listener = listen(0)
    try:
        host, port = listener.getsockname()
        assert host == "127.0.0.1"
        with pytest.raises(BadRequest, match=f"port {port} cannot be used"):
            listen(port)
    finally:
        listener.close()
