"""Device, mixed precision and threads of a run."""

import pytest
import torch

from tiebeam.errors import BadRequest
from tiebeam.train.device import autocast, choose_device, free_threads


def test_auto_takes_the_cpu_where_there_is_no_gpu():
    if torch.cuda.is_available() or torch.backends.mps.is_available():
        pytest.skip("this machine has a GPU")
    assert choose_device("auto") == torch.device("cpu")


@pytest.mark.parametrize("name", ["cuda:99", "xpu", "toaster"])
def test_a_device_that_is_not_there_is_one_sentence(name):
    with pytest.raises(BadRequest, match=name):
        choose_device(name)


def test_products_on_a_cpu_stay_in_float32():
    a = torch.ones(2, 2)
    with autocast(torch.device("cpu")):
        assert (a @ a).dtype == torch.float32


def test_at_least_one_thread_is_free():
    assert 1 <= free_threads() <= 4096
