"""Device and mixed precision of a run."""

import pytest
import torch

from tiebeam.errors import BadRequest
from tiebeam.train.device import autocast, choose_device


def test_auto_is_the_cpu_without_a_gpu():
    if torch.cuda.is_available() or torch.backends.mps.is_available():
        pytest.skip("this machine has a GPU")
    assert choose_device("auto") == torch.device("cpu")


@pytest.mark.parametrize("name", ["cuda:99", "xpu", "toaster"])
def test_an_unavailable_device_is_refused(name):
    with pytest.raises(BadRequest, match=name):
        choose_device(name)


def test_cpu_products_stay_in_float32():
    a = torch.ones(2, 2)
    with autocast(torch.device("cpu")):
        assert (a @ a).dtype == torch.float32
