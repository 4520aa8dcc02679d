"""Device, mixed precision and threads of a run."""

import os

import pytest
import torch

from tiebeam.errors import BadRequest
from tiebeam.train.device import autocast, choose_device, free_threads


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


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs CPU affinity")
def test_busy_cores_are_not_free_but_one_thread_always_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))
    cores = free_threads()
    assert cores == len(os.sched_getaffinity(0))
    monkeypatch.setattr("os.getloadavg", lambda: (1000.0, 0.0, 0.0))
    assert free_threads() == 1
