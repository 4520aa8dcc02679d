"""Files that bitsandbytes and compressed-tensors wrote: what is read in them, and what `tie` and `untie` do."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from safetensors import safe_open

from peers import environments
from tiebeam.checkpoint import open_checkpoint
from tiebeam.checkpoint.quantized.packed import packed_matrix
from tiebeam.doctor import diagnose
from tiebeam.errors import BadRequest
from tiebeam.surgery import execute, open_source, plan_keep, plan_tie

# directory: method, bits
PACKED = {
    "bitsandbytes4-untied": ("bitsandbytes", 4),
    "bitsandbytes8-untied": ("bitsandbytes", 8),
    "fp8-untied": ("fp8", 8),
    "fp8-tied": ("fp8", 8),
    "w4a16-untied": ("compressed-tensors", 4),
    "w4a16-tied": ("compressed-tensors", 4),
}
pytestmark = pytest.mark.peer


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    python = environments.python("quantizers")
    if python is None:
        pytest.skip("the quantisers: not built; run `python tests/peers/environments.py quantizers`")
    where = tmp_path_factory.mktemp("quantized")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    script = Path(__file__).parent / "write_quantized.py"
    subprocess.run([str(python), str(script), str(where)], check=True, capture_output=True, env=environment)
    return where


def head_tensors(directory: Path) -> set[str]:
    with safe_open(str(directory / "model.safetensors"), "np") as opened:
        return {name for name in opened.keys() if name.startswith("lm_head.")}  # noqa: SIM118


@pytest.mark.parametrize("name", PACKED)
def test_every_part_of_a_packed_head_is_known(written: Path, name: str) -> None:
    checkpoint = open_checkpoint(written / name)
    stored = head_tensors(written / name)
    codes = min(stored & {"lm_head.weight", "lm_head.weight_packed"})
    packed = packed_matrix(checkpoint, codes)
    assert packed is not None
    assert (packed.method, packed.bits) == PACKED[name]
    assert packed.shape == (256, 128)
    assert set(packed.parts) == stored


@pytest.mark.parametrize("name", PACKED)
def test_no_loader_gets_a_promise_about_a_packed_head(written: Path, name: str) -> None:
    """A packed head was not compared with the plain embedding, so the pair is not called torn (TB101) either."""
    diagnosis = diagnose(written / name)
    assert diagnosis.report.packed == ("head",)
    assert {found.outcome for found in diagnosis.loaders} == {"not known"}
    assert [f.code for f in diagnosis.findings if f.code != "TB806"] == (["TB601"] if name.endswith("-tied") else [])


@pytest.mark.parametrize("name", PACKED)
def test_a_packed_head_is_dropped_whole_or_not_at_all(written: Path, name: str, tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match='keep="embed"'):
        plan_tie(open_source(written / name))
    execute(plan_keep(open_source(written / name), "embed"), tmp_path / "tied", proof=False)
    assert head_tensors(tmp_path / "tied") == set()


@pytest.mark.parametrize("method", ["bitsandbytes4", "bitsandbytes8"])
def test_bitsandbytes_leaves_a_tied_table_plain(written: Path, method: str) -> None:
    report = diagnose(written / f"{method}-tied").report
    assert (str(report.tie), report.packed) == ("shared", ())
