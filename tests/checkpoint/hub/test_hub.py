"""Models on the Hub, read from a small test Hub over real sockets (see tests/helpers/hub_server.py)."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest

import tiebeam
from helpers.building import llama_config, table, write_model, write_sharded
from helpers.hub_server import COMMIT, Hub, serve
from tiebeam.checkpoint import open_checkpoint
from tiebeam.checkpoint.hub.repository import Address, parse_address
from tiebeam.errors import TiebeamError, UnreadableInput


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A Hub that huggingface_hub is configured for, with an empty cache and no token."""
    from huggingface_hub import constants

    (tmp_path / "repos").mkdir()
    with serve(tmp_path / "repos") as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr("tiebeam.checkpoint.hub.http_ranges._WAITS", (0.0, 0.0))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setenv("NO_PROXY", "*")
        monkeypatch.chdir(tmp_path)
        yield hub


@pytest.fixture
def tiny(hub: Hub) -> Path:
    """org/tiny: two shards with an index."""
    shards = [{"model.embed_tokens.weight": table(0)}, {"lm_head.weight": table(1)}]
    return write_sharded(hub.root / "org" / "tiny", shards, llama_config())


def sparse_shards(where: Path, count: int, rows: int) -> None:
    """A sharded model of sparse files: [`rows`, 1024] BF16 per tensor, eight tensors per shard."""
    where.mkdir(parents=True)
    weight_map: dict[str, str] = {}
    for i in range(1, count + 1):
        names = [f"model.layers.{i}.mlp.experts.{j}.down_proj.weight" for j in range(8)]
        size = rows * 1024 * 2
        header = {
            name: {"dtype": "BF16", "shape": [rows, 1024], "data_offsets": [j * size, (j + 1) * size]}
            for j, name in enumerate(names)
        }
        raw = json.dumps(header).encode()
        shard = f"model-{i:05d}-of-{count:05d}.safetensors"
        with (where / shard).open("wb") as file:
            file.write(struct.pack("<Q", len(raw)) + raw)
            file.truncate(8 + len(raw) + 8 * size)
        weight_map |= dict.fromkeys(names, shard)
    (where / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (where / "config.json").write_text(json.dumps(llama_config()))


def refusal(source: str) -> str:
    with pytest.raises(UnreadableInput) as caught:
        open_checkpoint(source)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Addresses


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("org/name", Address("org/name", "main", "")),
        ("org/name@v1.0", Address("org/name", "v1.0", "")),
        ("hf://org/name@refs/pr/1", Address("org/name", "refs/pr/1", "")),
        ("hf://org/name@feature%2Fx", Address("org/name", "feature/x", "")),
        ("hf://org/name@refs/pr/1/sub/f.gguf", Address("org/name", "refs/pr/1", "sub/f.gguf")),
        ("hf://org/name@main/f.gguf", Address("org/name", "main", "f.gguf")),
        ("hf://org/name/f.gguf@v2", Address("org/name", "v2", "f.gguf")),
        ("hf://models/org/name", Address("org/name", "main", "")),
        ("hf://gpt2", Address("gpt2", "main", "")),
        ("gpt2", None),
        ("./name", None),
        ("../name", None),
        ("/abs/name", None),
        ("hf://org/name@a@b", None),
        ("hf://", None),
    ],
)
def test_address_has_repository_revision_and_path(text: str, address: Address | None) -> None:
    assert parse_address(text) == address


def test_printed_address_parses_back() -> None:
    for address in (Address("o/n", "main", ""), Address("o/n", "a/b", ""), Address("o/n", "v1", "sub/f.gguf")):
        assert parse_address(str(address)) == address


@pytest.mark.parametrize("text", ["models/nothing/model.safetensors", "models/missing.gguf", "./nothing", "a.bin"])
def test_mistyped_path_is_not_sent_to_the_hub(hub: Hub, tmp_path: Path, text: str) -> None:
    (tmp_path / "models").mkdir()
    assert "does not exist" in refusal(text)
    assert hub.seen == []


def test_name_without_organisation_is_a_model_on_the_hub_and_says_so(hub: Hub, tiny: Path) -> None:
    hub.canonical["tiny"] = "org/tiny"
    report = tiebeam.inspect("tiny")
    assert report.model == "hf://tiny"
    assert report.tie == "untied"
    assert "there is no path tiny here: this is the model hf://tiny on the Hub" in report.notes
    assert [f.code for f in tiebeam.diagnose("tiny").findings] == [f.code for f in tiebeam.diagnose(tiny).findings]


def test_local_path_comes_before_a_model_on_the_hub(hub: Hub, tiny: Path, tmp_path: Path) -> None:
    hub.canonical["tiny"] = "org/tiny"
    write_model(tmp_path / "tiny", {"model.embed_tokens.weight": table(0)}, llama_config(tie_word_embeddings=True))
    assert tiebeam.inspect("tiny").tie == "shared"
    assert hub.seen == []


def test_name_that_is_neither_here_nor_on_the_hub(hub: Hub) -> None:
    said = refusal("nothing")
    assert said.startswith("nothing does not exist on this disk; as a model on the Hub: there is no model nothing on ")


@pytest.mark.parametrize("typo", ["chekpoint", "Checkpoint", "runs/chekpoint"])
def test_typo_of_a_local_path_names_it_and_asks_nobody(hub: Hub, tmp_path: Path, typo: str) -> None:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "runs" / "checkpoint").mkdir(parents=True)
    meant = typo.replace("chek", "check").replace("Check", "check")
    hub_name = f"For a model on the Hub, write hf://{typo}"
    assert refusal(typo) == f"{typo} does not exist; did you mean {meant}? {hub_name}"
    assert hub.seen == []


# Reading


def test_test_server_serves_the_real_huggingface_hub_client(hub: Hub, tiny: Path) -> None:
    from huggingface_hub import HfApi, hf_hub_download

    info = HfApi(endpoint=hub.url).model_info("org/tiny")
    assert info.sha == COMMIT
    name = "model-00001-of-00002.safetensors"
    assert Path(hf_hub_download("org/tiny", name, endpoint=hub.url)).read_bytes() == (tiny / name).read_bytes()


@pytest.mark.parametrize("source", ["org/tiny", "hf://org/tiny", f"org/tiny@{COMMIT}", "hf://org/tiny@refs/pr/1"])
def test_sharded_repository_opens_like_its_directory(hub: Hub, tiny: Path, source: str) -> None:
    remote, local = open_checkpoint(source), open_checkpoint(tiny)
    assert remote.source == source
    assert remote.tensors == local.tensors
    assert remote.config == local.config
    assert remote.nbytes == local.nbytes
    np.testing.assert_array_equal(remote.rows("lm_head.weight", 3, 9), local.rows("lm_head.weight", 3, 9))
    np.testing.assert_array_equal(remote.tensor("lm_head.weight"), local.tensor("lm_head.weight"))


@pytest.mark.filterwarnings("ignore")
def test_distributed_checkpoint_in_a_repository_opens_like_its_directory(hub: Hub) -> None:
    import torch
    import torch.distributed.checkpoint as dcp

    where = hub.root / "org" / "spread"
    state = {"model.embed_tokens.weight": torch.tensor(table(0)), "lm_head.weight": torch.tensor(table(1))}
    dcp.save({"model": state}, checkpoint_id=where, no_dist=True)
    (where / "config.json").write_text(json.dumps(llama_config()))
    remote, local = open_checkpoint("org/spread"), open_checkpoint(where)
    assert (remote.tensors, remote.config) == (local.tensors, local.config)
    np.testing.assert_array_equal(remote.rows("lm_head.weight", 3, 9), table(1)[3:9])


def test_opening_a_large_repository_transfers_kilobytes(hub: Hub) -> None:
    sparse_shards(hub.root / "org" / "large", count=24, rows=1 << 16)  # 24 GiB
    checkpoint = open_checkpoint("org/large")
    assert len(checkpoint.tensors) == 24 * 8
    assert checkpoint.nbytes > 24 << 30
    assert hub.bytes_sent < 200_000
    assert len(hub.storage.seen) == 24  # one request a shard: the index tells how long each header is
    before = hub.bytes_sent
    name = "model.layers.7.mlp.experts.3.down_proj.weight"
    assert checkpoint.rows(name, 60_000, 60_010).shape == (10, 1024)
    assert hub.bytes_sent - before == 10 * 1024 * 2


def test_header_longer_than_the_first_range_is_fetched_with_a_second(hub: Hub) -> None:
    tensors = {f"layer.{i}.{'x' * 200}": np.zeros((2, 2), np.float32) for i in range(400)}
    write_model(hub.root / "org" / "long", tensors, None)
    assert len(open_checkpoint("org/long").tensors) == 400
    assert len(hub.storage.seen) == 2


def test_single_gguf_file_opens_over_ranges_and_nothing_is_written(hub: Hub, tmp_path: Path) -> None:
    from gguf import GGUFWriter

    (hub.root / "org" / "quant").mkdir(parents=True)
    writer = GGUFWriter(hub.root / "org" / "quant" / "m.gguf", "llama")
    writer.add_array("tokenizer.ggml.tokens", [f"token{i}" for i in range(20_000)])
    writer.add_tensor("token_embd.weight", table(0))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    checkpoint = open_checkpoint("org/quant")
    assert checkpoint.architecture == "llama"
    np.testing.assert_array_equal(checkpoint.tensor("token_embd.weight"), table(0))
    assert checkpoint.metadata["tokenizer.ggml.tokens"][19_999] == "token19999"
    assert not (tmp_path / "cache").exists()


def test_repository_of_several_gguf_files_asks_for_one_and_opens_it(hub: Hub) -> None:
    from gguf import GGUFWriter

    for name in ("m.Q4_0.gguf", "m.Q8_0.gguf", "mmproj-f16.gguf", "big/m.F32.gguf"):
        path = hub.root / "org" / "quants" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        writer = GGUFWriter(path, "llama")
        writer.add_tensor("token_embd.weight", table(len(name)))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    sentence = refusal("org/quants")
    assert "holds 2 models (m.Q4_0.gguf, m.Q8_0.gguf)" in sentence
    way_out = sentence.rpartition(" as ")[2]
    assert way_out == "hf://org/quants/m.Q4_0.gguf"
    for source, length in (
        (way_out, 11),
        ("org/quants/m.Q8_0.gguf", 11),
        ("hf://org/quants/m.Q8_0.gguf@main", 11),
        ("hf://org/quants@main/big/m.F32.gguf", 14),
        ("hf://org/quants/big", 14),
    ):
        np.testing.assert_array_equal(open_checkpoint(source).tensor("token_embd.weight"), table(length))
    assert "has no file nothing.gguf" in refusal("org/quants/nothing.gguf")


def test_expired_signed_address_is_renewed(hub: Hub, tiny: Path) -> None:
    checkpoint = open_checkpoint("org/tiny")
    checkpoint.files._heads["model-00002-of-00002.safetensors"] = (  # type: ignore[attr-defined]
        checkpoint.files.size("model-00002-of-00002.safetensors"),
        b"",
    )
    hub.signature = "second"
    np.testing.assert_array_equal(checkpoint.tensor("lm_head.weight"), table(1))


# The token


def test_token_is_sent_to_the_hub_and_to_no_other_host(hub: Hub, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    open_checkpoint("org/tiny").tensor("lm_head.weight")
    assert hub.front.seen
    assert hub.storage.seen
    assert {seen.headers.get("authorization") for seen in hub.front.seen} == {"Bearer hf_secret"}
    assert not any("hf_secret" in str(seen) for seen in hub.storage.seen)


def test_without_a_token_none_is_sent(hub: Hub, tiny: Path) -> None:
    open_checkpoint("org/tiny")
    assert not any("authorization" in seen.headers for seen in hub.seen)


def test_environment_variables_alone_configure_a_fresh_process(hub: Hub, tiny: Path, tmp_path: Path) -> None:
    script = (
        "import sys; from tiebeam.checkpoint import open_checkpoint; c = open_checkpoint('org/tiny');"
        "print(len(c.tensors)); print('torch' in sys.modules)"
    )
    environment = os.environ | {
        "HF_ENDPOINT": hub.url + "/",
        "HF_TOKEN": "hf_env",
        "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_OFFLINE": "0",  # other tests set it for their own processes
        "HF_HUB_ETAG_TIMEOUT": "120",  # a busy machine may be slow to start the process
        "HF_HUB_DOWNLOAD_TIMEOUT": "120",
        "PYTHONPATH": str(Path(tiebeam.__file__).parents[1]),
    }
    run = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert run.stdout.split() == ["2", "False"], run.stderr
    assert {seen.headers.get("authorization") for seen in hub.front.seen} == {"Bearer hf_env"}
    offline = environment | {"HF_HUB_OFFLINE": "1"}
    run = subprocess.run([sys.executable, "-c", script], env=offline, capture_output=True, text=True, check=False)
    assert "HF_HUB_OFFLINE is set and it is not in the local cache" in run.stderr


# The cache


@pytest.fixture
def cached(hub: Hub, tiny: Path, tmp_path: Path) -> Path:
    """org/tiny, downloaded into the cache by the real client."""
    from huggingface_hub import snapshot_download

    snapshot = Path(snapshot_download("org/tiny", endpoint=hub.url, cache_dir=tmp_path / "cache"))
    hub.front.seen.clear()
    hub.storage.seen.clear()
    return snapshot


@pytest.mark.parametrize("source", ["org/tiny", f"hf://org/tiny@{COMMIT}"])
@pytest.mark.parametrize("offline", [False, True])
def test_cached_model_is_read_without_the_network(
    hub: Hub, cached: Path, source: str, offline: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", offline)
    checkpoint = open_checkpoint(source)
    np.testing.assert_array_equal(checkpoint.tensor("lm_head.weight"), table(1))
    assert hub.seen == []
    assert any("local cache" in note and COMMIT[:12] in note for note in checkpoint.notes)


def test_cached_snapshot_opens_as_a_directory_and_as_a_file(cached: Path) -> None:
    assert (cached / "config.json").is_symlink()
    assert set(open_checkpoint(cached).tensors) == {"model.embed_tokens.weight", "lm_head.weight"}
    assert len(open_checkpoint(cached / "model-00001-of-00002.safetensors").tensors) == 2


def test_common_blob_store_of_newer_caches_is_followed(cached: Path, tmp_path: Path) -> None:
    """The layout of newer caches: <repository>/blobs/DIGEST is a link to <cache>/blobs/ab/<hash>."""
    shared = tmp_path / "cache" / "blobs" / "ab"
    shared.mkdir(parents=True)
    blob = Path(os.path.realpath(cached / "model-00001-of-00002.safetensors"))
    blob.rename(shared / ("ab" * 32))
    blob.symlink_to(os.path.relpath(shared / ("ab" * 32), blob.parent))
    assert len(open_checkpoint("org/tiny").tensors) == 2
    (shared / ("ab" * 32)).rename(tmp_path / "elsewhere")
    blob.unlink()
    blob.symlink_to(tmp_path / "elsewhere")
    assert "outside the model's directory" in refusal(str(cached))


def test_partly_cached_model_is_not_used(hub: Hub, cached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cached / "model-00002-of-00002.safetensors").unlink()
    assert len(open_checkpoint("org/tiny").tensors) == 2
    assert hub.seen
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    sentence = refusal("org/tiny")
    assert "HF_HUB_OFFLINE is set" in sentence
    assert "model-00002-of-00002.safetensors, which is missing" in sentence


def test_another_revision_is_not_served_from_the_cache(hub: Hub, cached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "not in the local cache" in refusal("org/tiny@v2")


def test_revision_cannot_leave_the_cache_directory(hub: Hub, cached: Path) -> None:
    assert "outside the model's directory" in refusal("hf://org/tiny@..%2F..%2Fother")
    assert "outside the model's directory" in refusal("hf://org/tiny/../../other")


# Refusals, each with its own sentence


def test_missing_repository(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    sentence = refusal("org/nothing")
    assert sentence.startswith(f"there is no model org/nothing on {hub.url}")
    assert "HF_TOKEN" in sentence
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    assert "a token that may read it" in refusal("org/nothing")


def test_missing_revision(hub: Hub, tiny: Path) -> None:
    assert refusal("org/tiny@v9").startswith("org/tiny has no revision 'v9'")


@pytest.mark.parametrize(("token", "message"), [("", "no token is set"), ("hf_x", "has not been granted access")])
def test_gated_repository(hub: Hub, tiny: Path, token: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def gate(handler) -> bool:  # the real Hub lists a gated repository, but resolves none of its files
        if "/resolve/" not in handler.path:
            return False
        handler.reply(403 if token else 401, {"X-Error-Code": "GatedRepo"}, b'{"error": "gated"}')
        return True

    hub.front.rule = gate
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    sentence = refusal("org/tiny")
    assert "org/tiny is gated" in sentence
    assert message in sentence
    assert f"{hub.url}/org/tiny" in sentence


def always(hub: Hub, status: int, headers: dict[str, str], body: bytes = b"") -> None:
    hub.front.rule = lambda handler: handler.reply(status, headers, body)


@pytest.mark.parametrize(
    ("status", "headers", "message"),
    [
        (401, {"X-Error-Message": "Invalid credentials in Authorization header"}, "does not accept the token"),
        (403, {}, "does not let this token or this network read org/tiny (403)"),
        (429, {}, "limits the rate of requests"),
        (500, {}, "answered 500"),
        (503, {}, "answered 503"),
        (418, {}, "answered 418"),
        (301, {}, "answered 301"),
    ],
)
def test_refusal_of_the_server_is_explained(
    hub: Hub, tiny: Path, status: int, headers: dict[str, str], message: str
) -> None:
    always(hub, status, headers)
    assert message in refusal("org/tiny")
    assert len(hub.front.seen) == (3 if status in (429, 500, 503) else 1)


def test_temporary_server_error_is_retried(hub: Hub, tiny: Path) -> None:
    def stumble(handler) -> bool:
        if len([seen for seen in hub.front.seen if seen.path == unquote(handler.path)]) > 1:
            return False
        handler.reply(503, {})
        return True

    hub.front.rule = stumble
    assert len(open_checkpoint("org/tiny").tensors) == 2


def test_refusal_of_the_storage_host_is_explained(hub: Hub, tiny: Path) -> None:
    hub.storage.rule = lambda handler: handler.reply(404, {})
    sentence = refusal("org/tiny")
    assert "the storage behind" in sentence
    assert "answered 404" in sentence


def test_missing_network_is_explained(hub: Hub, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.close()
    sentence = refusal("org/tiny")
    assert f"cannot be read from {urlsplit(hub.url).netloc}" in sentence
    assert "hf download org/tiny" in sentence


def test_invalid_endpoint_is_refused(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    for endpoint in ("nonsense", "ftp://x", "http://", "http://host:port"):
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", endpoint)
        assert "HF_ENDPOINT" in refusal("org/tiny")


def test_server_that_is_not_a_hub_is_refused(hub: Hub, tiny: Path) -> None:
    for body in (b"<html>", b"[]", b'{"id": 1}', b"\xff"):
        always(hub, 200, {}, body)
        assert hub.url in refusal("org/tiny")


def test_whole_large_file_in_answer_to_a_range_is_refused(hub: Hub) -> None:
    sparse_shards(hub.root / "org" / "large", count=1, rows=1 << 15)  # half a GiB

    def whole(handler) -> bool:
        size = (hub.root / "org/large/model-00001-of-00001.safetensors").stat().st_size
        handler.send_response(200)
        handler.send_header("Content-Length", str(size))
        handler.end_headers()
        try:
            for _ in range(size >> 16):
                handler.wfile.write(bytes(1 << 16))
                hub.storage.bytes_sent += 1 << 16
        except OSError:
            handler.close_connection = True
        return True

    hub.storage.rule = whole
    assert "the server would send the whole file" in refusal("org/large")
    assert hub.bytes_sent < 32 << 20


def test_large_stream_without_a_length_is_refused(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiebeam.checkpoint.hub.hub_files._WHOLE", 1 << 20)
    sparse_shards(hub.root / "org" / "large", count=1, rows=1 << 15)

    def endless(handler) -> bool:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        try:
            for _ in range(1 << 13):
                handler.wfile.write(b"10000\r\n" + bytes(1 << 16) + b"\r\n")
                hub.storage.bytes_sent += 1 << 16
        except OSError:
            handler.close_connection = True
        return True

    hub.storage.rule = endless
    assert "the server would send the whole file" in refusal("org/large")
    assert hub.bytes_sent < 32 << 20


def test_small_model_may_be_sent_whole(hub: Hub, tiny: Path) -> None:
    def whole(handler) -> bool:
        handler.reply(200, {}, (tiny / urlsplit(handler.path).path.rpartition("/")[2]).read_bytes())
        return True

    hub.storage.rule = whole
    np.testing.assert_array_equal(open_checkpoint("org/tiny").tensor("lm_head.weight"), table(1))


def test_truncated_answer_is_refused(hub: Hub, tiny: Path) -> None:
    def half(handler) -> bool:
        end = int(handler.headers["Range"].partition("-")[2])
        handler.send_response(206)
        handler.send_header("Content-Range", f"bytes 0-{end}/70000")
        handler.send_header("Content-Length", str(end + 1))
        handler.end_headers()
        handler.wfile.write(bytes(end // 2))
        handler.close_connection = True
        return True

    hub.storage.rule = half
    assert "model-00001-of-00002.safetensors cannot be read from" in refusal("org/tiny")
    assert len(hub.storage.asked("model-00001")) == 3


@pytest.mark.parametrize("answered", ["bytes 5-10/100", "bytes */100", "nonsense", "bytes 0-99999999999999999999/1"])
def test_answer_with_another_range_is_refused(hub: Hub, tiny: Path, answered: str) -> None:
    hub.storage.rule = lambda handler: handler.reply(206, {"Content-Range": answered}, b"123456")
    assert "another range" in refusal("org/tiny")


def test_file_that_changes_size_between_two_ranges_is_refused(hub: Hub, tiny: Path) -> None:
    checkpoint = open_checkpoint("org/tiny")
    name = "model-00002-of-00002.safetensors"
    checkpoint.files._heads[name] = (checkpoint.files.size(name), b"")  # type: ignore[attr-defined]
    with (tiny / name).open("ab") as file:
        file.write(b"more")
    with pytest.raises(UnreadableInput, match="changed while it was read"):
        checkpoint.tensor("lm_head.weight")


def test_endless_redirects_are_refused(hub: Hub, tiny: Path) -> None:
    hub.storage.rule = lambda handler: handler.reply(302, {"Location": handler.path})
    assert "redirects more than 10 times" in refusal("org/tiny")
    assert len(hub.storage.seen) < 50


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("file:///etc/passwd", "redirects to"),
        ("ftp://host/x", "redirects to"),
        ("http://host:port/", "port"),
        ("http://[::1", "127.0.0.1"),
        ("http://127.0.0.1:1/\x7f", "127.0.0.1"),
    ],
)
def test_redirect_to_a_non_http_address_is_refused(hub: Hub, tiny: Path, location: str, message: str) -> None:
    hub.storage.rule = lambda handler: handler.reply(302, {"Location": location})
    assert message in refusal("org/tiny")


def test_index_cannot_name_a_file_outside_the_repository(hub: Hub) -> None:
    where = hub.root / "org" / "climber"
    where.mkdir(parents=True)
    for shard in ("../../org/tiny/model.safetensors", "/etc/passwd", "..\\x.safetensors", ""):
        index = {"weight_map": {"a": shard}}
        (where / "model.safetensors.index.json").write_text(json.dumps(index))
        assert "outside the model's directory" in refusal("org/climber")


def test_index_may_name_a_shard_in_a_folder(hub: Hub) -> None:
    where = hub.root / "org" / "foldered"
    write_model(where / "parts", {"a": table(0)}, None)
    index = {"weight_map": {"a": "parts/model.safetensors"}}
    (where / "model.safetensors.index.json").write_text(json.dumps(index))
    np.testing.assert_array_equal(open_checkpoint("org/foldered").tensor("a"), table(0))
    (where / "parts" / "model.safetensors").unlink()
    assert "has no file parts/model.safetensors" in refusal("org/foldered")


def test_repository_without_weights(hub: Hub) -> None:
    where = hub.root / "org" / "card"
    where.mkdir(parents=True)
    assert "has no file at all" in refusal("org/card")
    (where / "README.md").write_text("hello")
    assert "holds README.md; expected *.safetensors" in refusal("org/card")
    (where / "part").mkdir()
    (where / "part" / "x.gguf").write_bytes(b"")
    assert "as hf://org/card/part" in refusal("org/card")
    assert "is not a GGUF file" in refusal("hf://org/card/part")


def test_every_failure_is_a_tiebeam_error(hub: Hub, tiny: Path) -> None:
    """Answers truncated at any byte of any file give a result or one sentence."""
    raw = (tiny / "model-00001-of-00002.safetensors").read_bytes()
    for length in range(0, len(raw), 97):
        (tiny / "model-00001-of-00002.safetensors").write_bytes(raw[:length])
        with pytest.raises(TiebeamError):
            open_checkpoint("org/tiny")
