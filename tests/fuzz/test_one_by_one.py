"""Where torch refuses a file that we read, the fuzzer makes each tensor alone: equal to ours, or a disagreement."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "fuzz"))
from harnesses import fuzz_torch_zip

pytestmark = pytest.mark.filterwarnings("ignore:Detected pickle protocol 4")


class Refused:
    """A class that weights_only does not allow."""


@pytest.fixture(params=["zip", "legacy", "protocol 4"])
def refused(request, tmp_path):
    """A file that torch refuses for what is beside the tensors."""
    weight = torch.arange(12.0).reshape(3, 4)
    value = {"a.weight": weight, "model": {"part": weight[1:, 1:], "alias": weight.T}, "beside": Refused()}
    zipped, protocol = request.param != "legacy", 4 if request.param == "protocol 4" else 2
    path = tmp_path / fuzz_torch_zip.FILE
    torch.save(value, path, _use_new_zipfile_serialization=zipped, pickle_protocol=protocol)
    with pytest.raises(Exception, match="Weights only load failed"):
        torch.load(path, weights_only=True)
    return tmp_path


def test_right_tensors_are_confirmed(refused):
    ours = fuzz_torch_zip.read(refused)
    assert ours
    assert fuzz_torch_zip.one_by_one(refused, ours) == ours


@pytest.mark.parametrize("fault", ["byte", "shape", "type", "name"])
def test_wrong_tensor_is_found(refused, fault):
    ours: Any = fuzz_torch_zip.read(refused)
    name, (dtype, shape, raw) = ours.popitem()
    ours |= {
        "byte": {name: (dtype, shape, raw[1:] + raw[:1])},
        "shape": {name: (dtype, [*shape[::-1], 1], raw)},
        "type": {name: ("I32", shape, raw)},
        "name": {name + "2": (dtype, shape, raw)},
    }[fault]
    assert fuzz_torch_zip.one_by_one(refused, ours) != ours
