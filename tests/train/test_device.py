"""Device, mixed precision and threads of a run."""

import os
from pathlib import Path

import pytest
import torch

from tiebeam.errors import BadRequest
from tiebeam.train.device import autocast, busy_cores, choose_device, free_threads


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
def test_threads_are_the_cores_that_are_free_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiebeam.train.device.busy_cores", lambda: 0.0)
    cores = free_threads()
    assert 1 <= cores <= (os.cpu_count() or 1)
    monkeypatch.setattr("tiebeam.train.device.busy_cores", lambda: 1000.0)
    assert free_threads() == 1


def test_busy_cores_are_sampled_and_the_load_average_is_used_without_proc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 0 0 900 0 0 0 0 0 0\ncpu0 1\n")

    def later(seconds: float) -> None:  # half of the ticks since then were idle
        stat.write_text("cpu  150 0 0 950 0 0 0 0 0 0\ncpu0 1\n")

    monkeypatch.setattr("time.sleep", later)
    assert busy_cores(stat=stat) == pytest.approx((os.cpu_count() or 1) / 2)
    monkeypatch.setattr("os.getloadavg", lambda: (1.5, 0.0, 0.0))
    assert busy_cores(stat=tmp_path / "none") == 1.5
