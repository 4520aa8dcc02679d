"""One table and two maps: the arithmetic against its obvious twin, the exact limit, and what is written."""

import json
import shutil
import sys

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from tokenizers import Tokenizer, models, pre_tokenizers

from helpers.tiny_models import build
from tiebeam.checkpoint import dtypes
from tiebeam.decode import Decoder, Table
from tiebeam.errors import BadRequest, UnreadableInput
from tiebeam.inspection import inspect
from tiebeam.pair import Tie
from tiebeam.surgery import How, carry_out, open_case
from tiebeam.surgery.joint import Recipe, calibrate, factors_of, fit, join, moments_of
from tiebeam.surgery.joint import decomposition as parts
from tiebeam.surgery.joint.fit import tables_of
from tiebeam.surgery.joint.held_out import HeldOut
from tiebeam.surgery.joint.joint_plan import pair_rows
from tiebeam.surgery.joint.sensitivity import lookup_sensitivity

V, D = 300, 12
QUICK = How(durable=False)


@pytest.fixture
def pair():
    random = np.random.default_rng(0)
    E, W = (random.standard_normal((V, D)).astype(np.float32) for _ in range(2))
    W[:, :6] += 2 * E[:, 6:]  # the two have something in common
    weights = random.random(V) ** 3
    h = random.standard_normal((500, D)) * np.linspace(0.1, 3, D)
    return E, W, weights / weights.sum(), h.T @ h / 500


def rows_of(E, W):
    return lambda start, stop: (E[start:stop], W[start:stop])


def weighted_error(E, W, weights, root, b, S, A, B):
    return (weights[:, None] * (b * b * (E - S @ A) ** 2 + ((W - S @ B) @ root) ** 2)).sum()


@pytest.mark.parametrize("balance", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("rank", [3, 12, 20])
def test_the_gram_route_finds_what_a_full_svd_finds(pair, rank, balance, monkeypatch):
    monkeypatch.setattr(parts, "_BLOCK", 50 * 2 * D)  # several blocks
    E, W, weights, C = pair
    moments = moments_of(rows_of(E, W), weights, D)
    spectrum = parts.spectrum_of(moments, parts.square_roots(C), balance)
    factors = spectrum.factors(rank)
    S = factors.table(E, W)
    found = weighted_error(E, W, weights, spectrum.root, spectrum.balance, S, factors.embed_map, factors.head_map)
    X = np.sqrt(weights)[:, None] * np.hstack([spectrum.balance * E, W @ spectrum.root])
    best = (np.linalg.svd(X, compute_uv=False)[rank:] ** 2).sum()
    assert found == pytest.approx(best, rel=1e-5)
    assert (1 - spectrum.kept(rank)) * spectrum.total == pytest.approx(best, rel=1e-6)
    errors = parts.row_errors(rows_of(E, W), spectrum, rank, weights)
    assert errors.sum() == pytest.approx(best, rel=1e-5)


def test_equal_energy_is_the_balance_at_which_both_ends_weigh_the_same(pair):
    E, W, weights, C = pair
    root, _ = parts.square_roots(C)
    balance = parts.equal_energy(moments_of(rows_of(E, W), weights, D), root)
    energies = [(weights[:, None] * x**2).sum() for x in (balance * E, W @ root)]
    assert energies[0] == pytest.approx(energies[1])


def test_twice_the_width_is_exact(pair):
    E, W, weights, C = pair
    factors = factors_of(moments_of(rows_of(E, W), weights, D), C, 2 * D)
    S = factors.table(E, W)
    assert np.allclose(S @ factors.embed_map, E, atol=1e-5)
    assert np.allclose(S @ factors.head_map, W, atol=1e-5)


def test_rows_that_are_kept_leave_the_sums(pair):
    E, W, weights, _ = pair
    gone = np.array([3, 77])
    left = parts.without_rows(moments_of(rows_of(E, W), weights, D), rows_of(E, W), gone)
    weights = weights.copy()
    weights[gone] = 0
    fresh = moments_of(rows_of(E, W), weights, D)
    for name in ("embed", "cross", "head", "weights"):
        assert np.allclose(getattr(left, name), getattr(fresh, name), atol=1e-9)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A tiny untied llama written by transformers, with a tokenizer of words."""
    where = tmp_path_factory.mktemp("joint") / "model"
    build("llama", tie_word_embeddings=False).save_pretrained(where)
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(96)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(where / "tokenizer.json"))
    return where


@pytest.fixture(scope="module")
def text():
    random = np.random.default_rng(1)
    return " ".join(f"w{min(95, int(i))}" for i in random.exponential(12, 3000))


def torch_logits(where):
    from transformers import AutoModelForCausalLM

    with torch.no_grad():
        return AutoModelForCausalLM.from_pretrained(where).eval()(input_ids=torch.arange(4, 40)[None]).logits


def test_expanded_at_twice_the_width_any_loader_sees_the_same_model(model, text, tmp_path):
    joining = join(open_case(model), text, rank=2 * 32)
    outcome = carry_out(joining.plan(expand=True), tmp_path / "t", QUICK)
    assert torch.allclose(torch_logits(tmp_path / "t"), torch_logits(model), atol=1e-4)
    assert outcome.after.tie is Tie.UNTIED
    assert outcome.measured["after"]["kl"] < 1e-6


@pytest.mark.parametrize("exact_rows", [0, 10])
def test_the_joint_form_runs_and_its_expansion_says_the_same(model, text, tmp_path, exact_rows):
    joining = join(open_case(model), text, Recipe(24, exact_rows=exact_rows))
    outcome = carry_out(joining.plan(), tmp_path / "joint", QUICK)
    carry_out(joining.plan(expand=True), tmp_path / "expanded", QUICK)
    joint, expanded = (Decoder.open(tmp_path / name).logits(list(range(4, 40))) for name in ("joint", "expanded"))
    assert np.allclose(joint, expanded, atol=1e-5)
    assert inspect(tmp_path / "joint").tie is Tie.SHARED
    stored = load_file(tmp_path / "joint" / "tiebeam.safetensors")
    assert stored["tiebeam.table"].shape == (96, 24)
    assert ("tiebeam.exact_rows" in stored) == bool(exact_rows)
    config = json.loads((tmp_path / "joint" / "config.json").read_text())
    assert config["tiebeam"]["joint"]["rank"] == 24
    assert outcome.measured["after"]["kl"] == pytest.approx(joining.fitted.after.kl, abs=1e-4)


def test_exact_rows_are_the_rows_themselves(model, text, tmp_path):
    joining = join(open_case(model), text, Recipe(8, exact_rows=5))
    carry_out(joining.plan(), tmp_path / "joint", QUICK)
    stored, source = load_file(tmp_path / "joint" / "tiebeam.safetensors"), load_file(model / "model.safetensors")
    ids = stored["tiebeam.exact_rows"]
    assert len(ids) == 5
    assert np.array_equal(stored["tiebeam.exact_embed"], source["model.embed_tokens.weight"][ids])
    assert np.array_equal(stored["tiebeam.exact_head"], source["lm_head.weight"][ids])


def test_a_loader_that_does_not_know_the_form_finds_no_model(model, text, tmp_path):
    from transformers import AutoModelForCausalLM

    carry_out(join(open_case(model), text, rank=16).plan(), tmp_path / "joint", QUICK)
    with pytest.raises(OSError, match="no file named"):
        AutoModelForCausalLM.from_pretrained(tmp_path / "joint")


def test_more_rank_never_keeps_less_and_the_lines_say_so(model, text):
    lines = join(open_case(model), text, rank=32).spectrum()
    energies = [line["energy"] for line in lines]
    assert energies == sorted(energies)
    assert energies[-1] == pytest.approx(1)
    assert lines[-1]["rank"] == 64
    assert next(line for line in lines if line["rank"] == 32)["saved"] == 2 * 96 * 32 - 96 * 32 - 2 * 32 * 32


def test_what_is_taken_is_as_good_as_the_best_tried_or_nearly_so_and_evener(model, text):
    fitted = join(open_case(model), text, rank=16).fitted
    assert len(fitted.tried) == 5  # three powers, then two more balances
    best = min(kl for _, _, kl in fitted.tried)
    assert fitted.after.kl <= 1.02 * best
    assert (fitted.recipe.power, fitted.recipe.balance, fitted.after.kl) in fitted.tried


def test_the_noise_probe_says_what_an_error_of_the_lookup_costs(model, text):
    decoder = Decoder.open(model)
    calibration = calibrate(decoder, text)
    E = load_file(model / "model.safetensors")["model.embed_tokens.weight"]
    length = float(np.sqrt((E**2).sum(1).mean()))
    sensitivity = lookup_sensitivity(decoder, calibration.runs, length)
    wrong = E + np.random.default_rng(3).standard_normal(E.shape).astype(np.float32) * (0.1 * length / np.sqrt(32))
    kl = HeldOut(decoder, calibration.runs).measure(decoder.with_ends(Table(wrong), decoder.head)).kl
    assert kl == pytest.approx(0.5 * sensitivity * (0.1 * length) ** 2, rel=0.3)


def test_what_is_measured_is_what_the_decoder_measures(model, text):
    from tiebeam.decode import divergence

    joining = join(open_case(model), text, rank=16)
    rows, vocab, _ = pair_rows(joining.case)
    decoder = joining.held_out.original
    joined = decoder.with_ends(*tables_of(rows, vocab, joining.fitted.factors, joining.fitted.exact))
    run = joining.held_out.runs[0]
    ours, theirs = HeldOut(decoder, [run]).measure(joined), divergence(decoder, joined, run)
    assert ours.kl == pytest.approx(theirs.kl, rel=1e-3, abs=1e-6)
    assert ours.nats == pytest.approx(theirs.after.nats_per_token, rel=1e-5)
    assert ours.agreement == theirs.agreement


def test_nothing_held_out_is_counted(model, text):
    decoder = Decoder.open(model)
    calibration = calibrate(decoder, text)
    held = sum(len(run) for run in calibration.held_out)
    assert calibration.counts.sum() + held == calibration.tokens
    for power in (0.5, 1.0):
        weights = calibration.weights(power=power)
        assert weights.sum() == pytest.approx(1)
        assert (weights > 0).all()
    assert calibration.weights(power=0.5).max() < calibration.weights(power=1.0).max()


def test_weights_matter_rows_that_are_read_come_out_better(model, text):
    case = open_case(model)
    decoder, (rows, vocab, _) = Decoder.open(model), pair_rows(case)
    calibration = calibrate(decoder, text)
    held_out = HeldOut(decoder, calibration.held_out)
    often = np.argsort(calibration.counts)[-10:]
    errors = {}
    for name, recipe in {
        "counts": Recipe(16, power=1.0, balance=1.0, ridge=None, uniform=1e-6, predicted=0.0),
        "alike": Recipe(16, power=1.0, balance=1.0, ridge=None, uniform=1.0, predicted=0.0),
    }.items():
        factors = fit(held_out, rows, calibration, recipe).factors
        E, W = rows(0, vocab)
        errors[name] = np.linalg.norm((factors.table(E, W) @ factors.head_map - W)[often])
    assert errors["counts"] < errors["alike"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [({"rank": 0 + 65}, "between 1 and 64"), ({"recipe": Recipe(8, exact_rows=1000)}, "more than the vocabulary")],
)
def test_what_cannot_be_asked_is_said(model, text, options, sentence):
    with pytest.raises(BadRequest, match=sentence):
        join(open_case(model), text, **options)


def test_a_few_words_are_too_few(model):
    with pytest.raises(BadRequest, match="too few to calibrate"):
        join(open_case(model), "w1 w2 w3")


def test_a_model_that_no_engine_can_run_is_refused_with_the_reason(tmp_path, text, monkeypatch):
    build("mamba", tie_word_embeddings=False).save_pretrained(tmp_path / "m")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UnreadableInput, match=r"'mamba'.*needs the extra \[hf\]"):
        join(open_case(tmp_path / "m"), text)


def test_a_model_that_transformers_runs_is_tied_jointly_and_written_expanded(model, tmp_path, text):
    build("opt", tie_word_embeddings=False).save_pretrained(tmp_path / "m")
    shutil.copy(model / "tokenizer.json", tmp_path / "m")
    joining = join(open_case(tmp_path / "m"), text, Recipe(rank=2 * 32, power=1.0, balance=1.0))
    assert joining.fitted.after.kl < 1e-5  # twice the width keeps everything
    with pytest.raises(BadRequest, match="expand=True"):
        joining.plan()
    outcome = carry_out(joining.plan(expand=True), tmp_path / "t", QUICK)
    assert outcome.measured["after"]["kl"] < 1e-5
    assert torch.allclose(torch_logits(tmp_path / "t"), torch_logits(tmp_path / "m"), atol=1e-4)


def test_a_shared_model_has_no_two_matrices_to_join(tmp_path, text):
    build("llama", tie_word_embeddings=True).save_pretrained(tmp_path / "m")
    with pytest.raises(BadRequest, match="no two matrices"):
        join(open_case(tmp_path / "m"), text)


def test_healing_brings_the_loss_down_and_is_written(model, text, tmp_path):
    joining = join(open_case(model), text, rank=8)
    healed, done = joining.healed(0.05)
    assert done.rounds >= 1
    assert done.after.kl < done.before.kl == joining.fitted.after.kl
    outcome = carry_out(healed.plan(), tmp_path / "joint", QUICK)
    assert outcome.measured["after"]["kl"] == pytest.approx(done.after.kl, abs=1e-4)


def test_healing_goes_on_where_it_was_stopped(model, text, tmp_path):
    joining = join(open_case(model), text, rank=8)
    _, first = joining.healed(0.02, tmp_path / "t")
    kept = tmp_path / "t.healing" / "state.safetensors"
    assert kept.exists()
    _, second = joining.healed(0.04, tmp_path / "t")
    assert second.rounds > first.rounds
    assert second.minutes > first.minutes
    assert second.after.kl <= first.after.kl
    other = join(open_case(model), text, rank=9)  # another fit does not go on from this one
    _, third = other.healed(0.01, tmp_path / "t")
    assert third.minutes < second.minutes


@pytest.mark.parametrize("dtype", ["F16", "BF16", "F32"])
def test_encoding_rounds_to_nearest(dtype):
    values = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    kind = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32}[dtype]
    expected = torch.tensor(values).to(kind).to(torch.float32).numpy()
    assert np.array_equal(dtypes.decode(dtype, dtypes.encode(dtype, values), (1000,)).astype(np.float32), expected)
