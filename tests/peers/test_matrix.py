"""The predictions against the real loaders: a fixed sample in every run, the whole matrix with --full-matrix."""

import json
from pathlib import Path
from typing import Any

import pytest

from peers import matrix
from peers.loaders_page import PAGE, page
from tiebeam.cli.progress import Progress
from tiebeam.doctor.loaders import llama_cpp

# Every kind of behaviour that the four loaders have, in types that people use.
SAMPLE = (
    *("llama", "qwen2", "qwen3", "gemma2", "gemma3_text", "gpt2", "gpt_neox", "phi", "olmo2", "cohere", "t5", "bart"),
    *("mamba", "hunyuan_v1_dense", "mistral3", "qwen2_5_vl"),
)
STATES = ("one", "equal", "differ")


@pytest.fixture(scope="session")
def sample(tmp_path_factory):
    cases, failed = matrix.write_cases(tmp_path_factory.mktemp("sample"), SAMPLE, STATES)
    assert failed == {}
    return cases


def check_sample(peer, sample, out):
    peer.observe(sample, out)
    agreement = matrix.compare(peer, out)
    assert agreement.wrong == []
    return agreement


@pytest.mark.slow
def test_transformers_5_does_what_is_predicted(sample, tmp_path):
    agreement = check_sample(matrix.PEERS["transformers5"], sample, tmp_path / "observed.jsonl")
    assert agreement.types == set(SAMPLE)
    assert agreement.silent == {}


@pytest.mark.peer
@pytest.mark.parametrize("peer", ["transformers4", "mlx_lm", "llama_cpp"], indirect=True)
def test_a_peer_does_what_is_predicted(peer, sample, tmp_path):
    agreement = check_sample(peer, sample, tmp_path / "observed.jsonl")
    assert len(agreement.types | agreement.unsupported) >= 12


@pytest.mark.peer
@pytest.mark.parametrize("peer", ["llama_cpp"], indirect=True)
def test_the_runtime_refuses_an_output_weight_that_its_architecture_does_not_use(peer, sample, tmp_path):
    wanted = ("/llama/one-true-same", "/gemma2/one-true-same")
    cases = [(path, "extra", task) for path, _, task in sample if path.endswith(wanted)]
    peer.observe_all(cases, tmp_path / "observed.jsonl")
    found = [json.loads(line)[1] for line in (tmp_path / "observed.jsonl").read_text().splitlines()[1:]]
    assert {entry["arch"] for entry in found} == {"llama", "gemma2"}
    for entry in found:
        kind = llama_cpp.SURVEY.kind(entry["arch"])
        assert kind is not None
        assert (entry["runtime"] == "refuses") == (llama_cpp.outcome(kind, "differ")[0] == "refuses")


@pytest.mark.peer
@pytest.mark.timeout(0)
def test_the_whole_matrix_agrees(request, capsys, observations):
    if not request.config.getoption("--full-matrix", default=False):
        pytest.skip("the whole matrix runs with --full-matrix (`make peers`)")
    with capsys.disabled(), Progress() as progress:
        agreements = matrix.full(observations, progress)
    PAGE.write_text(page(agreements))
    assert {a.peer.name: a.wrong for a in agreements if a.wrong} == {}
    assert min(len(a.types) for a in agreements) >= 60


def test_a_wrong_prediction_is_reported(sample, tmp_path):
    """The comparison itself can fail: an observation that contradicts the prediction is listed."""
    where = next(path for path, stored, _ in sample if "/llama/one-true" in path)
    observed = tmp_path / "observed.jsonl"
    observed.write_text(f'{{"transformers": "5", "date": "2026-11-16"}}\n["{where}", {{"outcome": "keeps both"}}]\n')
    agreement = matrix.compare(matrix.PEERS["transformers5"], observed)
    assert agreement.wrong == [("llama", Path(where).name, "ties", "keeps both")]


def test_an_interrupted_run_goes_on_where_it_stopped(sample, tmp_path):
    """A cut-off last line is asked again; what has an answer is not."""
    cases = [case for case in sample if "/llama/one-" in case[0]]
    out = tmp_path / "observed.jsonl"
    first, second, third = (case[0] for case in cases)
    kept = json.dumps([first, {"outcome": "from the earlier run"}])
    out.write_text(f'{{"transformers": "5"}}\n{kept}\n["{second}", {{"outc')
    matrix.PEERS["transformers5"].observe_all(cases, out)
    entries: list[Any] = [json.loads(line) for line in out.read_text().splitlines()]
    answers: dict[str, Any] = {entry[0]: entry[1] for entry in entries if isinstance(entry, list)}
    assert answers[first] == {"outcome": "from the earlier run"}
    assert answers[second]["outcome"] == answers[third]["outcome"] == "random head"
