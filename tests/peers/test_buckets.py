"""A model in a bucket: the same report as of the local one, and headers only.

Read through s3fs from moto's S3 server, and through gcsfs from a local server with Google's JSON API. Each has its own
environment (s3, gcs), as `pip install 'tiebeam[s3]'` would make it: s3fs and moto hold older packages than ours.
"""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from helpers.building import llama_config, write_sharded
from peers.environments import python

pytestmark = [pytest.mark.peer, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
ROWS, WIDTH = 4096, 1024


@pytest.fixture(scope="module", params=["s3", "gcs"])
def store(request):
    return request.param


@pytest.fixture(scope="module")
def observed(store, tmp_path_factory):
    interpreter = python(store)
    if interpreter is None:
        pytest.skip(f"build the peers first: python tests/peers/environments.py {store}")
    where = tmp_path_factory.mktemp(store) / "big"
    shards = [
        {"model.embed_tokens.weight": np.zeros((ROWS, WIDTH), np.float32)},
        {f"model.layers.{i}.mlp.up_proj.weight": np.zeros((ROWS, WIDTH), np.float32) for i in range(3)},
    ]
    config = {**llama_config(tie_word_embeddings=True), "vocab_size": ROWS, "hidden_size": WIDTH}
    write_sharded(where, shards, config)
    script = Path(__file__).parent / f"observe_{store}.py"
    environment = {
        "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "src"), "HOME": str(where.parent), "NO_PROXY": "*",
        "TIEBEAM_TRACEBACK": "1",
    }  # fmt: skip
    done = subprocess.run(
        [str(interpreter), str(script), str(where)], env=environment, cwd=where.parent, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_model_in_a_bucket_has_the_report_of_the_local_one(observed):
    assert observed["there"] == observed["here"]
    assert observed["tie"] == "shared"


def test_only_headers_are_read(observed):
    """64 MB of weights; each shard's first 64 KiB at most, and the JSON files."""
    assert observed["stored"] > 60 << 20
    assert 0 < observed["sent"] < 200_000


def test_rows_are_read_by_range(observed):
    assert observed["rows"] == [2, WIDTH]
    assert 2 * WIDTH * 4 <= observed["sent_for_rows"] < 2 * WIDTH * 4 + 10_000


def test_errors_are_one_sentence_with_the_way_out(observed, store):
    assert observed["missing"] == f"{'gs' if store == 'gcs' else store}://models/nothing does not exist"
    assert observed["forbidden"].endswith("; check the credentials")
    if store == "s3":
        assert "FSSPEC_S3_ANON=true" in observed["without_credentials"]


def test_the_printed_download_command_runs(observed):
    assert observed["downloaded"] == "shared"
