"""The handmade GGUF files and the block sizes, judged by ggml itself (the library in xllamacpp)."""

import json
import subprocess
from pathlib import Path

import gguf
import pytest

from helpers.handmade_gguf import ACCEPTED, READ_BY_GGML, REFUSED, REFUSED_BY_GGML, by_hand
from peers.environments import python
from tiebeam.checkpoint.dtypes import _gguf_block

pytestmark = pytest.mark.peer
KINDS = [kind for kind in gguf.GGML_QUANT_SIZES if kind.name not in ("Q4_0_4_4", "Q4_0_4_8", "Q4_0_8_8")]


@pytest.fixture(scope="module")
def observed(tmp_path_factory):
    interpreter = python("transformers4")
    if interpreter is None:
        pytest.skip("build the peers first: python tests/peers/environments.py")
    where = tmp_path_factory.mktemp("handmade")
    cases = {**{name: claims for name, (claims, _) in REFUSED.items()}, **ACCEPTED}
    files = {str(by_hand(where / f"{i}.gguf", **claims)): name for i, (name, claims) in enumerate(cases.items())}
    script = Path(__file__).parent / "observe_ggml.py"
    command = [str(interpreter), str(script), json.dumps([int(kind) for kind in KINDS]), *files]
    answer = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return {files[path]: verdict for path, verdict in answer["files"].items()}, answer["blocks"]


@pytest.mark.parametrize("case", REFUSED)
def test_ggml_refuses_what_we_refuse(observed, case):
    assert observed[0][case] == ("opens" if case in READ_BY_GGML else "refuses")


@pytest.mark.parametrize("case", ACCEPTED)
def test_ggml_reads_what_we_read(observed, case):
    assert observed[0][case] == ("refuses" if case in REFUSED_BY_GGML else "opens")


def test_a_block_of_every_type_has_the_size_of_ggml(observed):
    assert {kind.name: list(_gguf_block(kind.name)) for kind in KINDS} == {
        kind.name: observed[1][str(int(kind))] for kind in KINDS
    }
