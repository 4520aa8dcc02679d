"""Joint tie: the decomposition against a full SVD, the exact limit, the files, and distillation."""

import json
import shutil
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import tiebeam
from helpers.tiny_models import build
from tiebeam.checkpoint import dtypes
from tiebeam.checkpoint.write.copy_bytes import Made
from tiebeam.decode import Decoder, Table
from tiebeam.decode.numpy.load_weights import LazyRows
from tiebeam.decode.transformers import TransformersEngine
from tiebeam.errors import BadRequest, ProofFailed, UnreadableInput
from tiebeam.inspection import inspect
from tiebeam.pair import Tie
from tiebeam.surgery import execute, open_source, tie
from tiebeam.surgery.joint import Recipe, calibrate, factors_of, fit, fit_joint, joint_tie, moments_of
from tiebeam.surgery.joint import calibration as calibration_module
from tiebeam.surgery.joint import decomposition as parts
from tiebeam.surgery.joint.calibration import split_documents
from tiebeam.surgery.joint.fit import tables_of
from tiebeam.surgery.joint.held_out import HeldOut
from tiebeam.surgery.joint.joint_plan import pair_rows
from tiebeam.surgery.joint.sensitivity import embedding_sensitivity

V, D = 300, 12
QUICK: dict[str, Any] = {"durable": False}


@pytest.fixture
def pair():
    random = np.random.default_rng(0)
    E, W = (random.standard_normal((V, D)).astype(np.float32) for _ in range(2))
    W[:, :6] += 2 * E[:, 6:]  # the two are correlated
    weights = random.random(V) ** 3
    h = random.standard_normal((500, D)) * np.linspace(0.1, 3, D)
    return E, W, weights / weights.sum(), h.T @ h / 500


def rows_of(E, W):
    return lambda start, stop: (E[start:stop], W[start:stop])


def weighted_error(E, W, weights, root, b, S, A, B):
    return (weights[:, None] * (b * b * (E - S @ A) ** 2 + ((W - S @ B) @ root) ** 2)).sum()


@pytest.mark.parametrize("balance", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("rank", [3, 12, 20])
def test_the_gram_matrix_gives_the_same_error_as_a_full_svd(pair, rank, balance, monkeypatch):
    monkeypatch.setattr(parts, "_BLOCK", 50 * 2 * D)  # several blocks
    E, W, weights, C = pair
    moments = moments_of(rows_of(E, W), weights, D)
    spectrum = parts.spectrum_of(moments, parts.square_roots(C), balance)
    factors = spectrum.factors(rank)
    S = factors.rows(rows_of(E, W), 0, len(E))
    found = weighted_error(E, W, weights, spectrum.root, spectrum.balance, S, factors.embed_map, factors.head_map)
    X = np.sqrt(weights)[:, None] * np.hstack([spectrum.balance * E, W @ spectrum.root])
    best = (np.linalg.svd(X, compute_uv=False)[rank:] ** 2).sum()
    assert found == pytest.approx(best, rel=1e-5)
    assert (1 - parts.kept(spectrum.values, rank)) * spectrum.values.sum() == pytest.approx(best, rel=1e-6)


def test_equal_energy_is_the_balance_at_which_embedding_and_head_have_the_same_energy(pair):
    E, W, weights, C = pair
    root, _ = parts.square_roots(C)
    balance = parts.equal_energy(moments_of(rows_of(E, W), weights, D), root)
    energies = [(weights[:, None] * x**2).sum() for x in (balance * E, W @ root)]
    assert energies[0] == pytest.approx(energies[1])


def test_rank_of_twice_the_width_is_exact(pair):
    E, W, weights, C = pair
    factors = factors_of(moments_of(rows_of(E, W), weights, D), C, 2 * D)
    S = factors.rows(rows_of(E, W), 0, len(E))
    assert np.allclose(S @ factors.embed_map, E, atol=1e-5)
    assert np.allclose(S @ factors.head_map, W, atol=1e-5)


@pytest.mark.parametrize("rank", [5, D, D + 4])
def test_where_the_embedding_is_exact_the_table_row_serves_the_head_alone(pair, rank):
    E, W, weights, C = pair
    root = parts.square_roots(C)[0]
    spectrum = parts.spectrum_of(moments_of(rows_of(E, W), weights, D), parts.square_roots(C), 1.0)
    exact = np.array([3, 77, 299])
    plain, alone = (spectrum.factors(rank, ids).rows(rows_of(E, W), 0, V) for ids in (None, exact))
    B = spectrum.factors(rank).head_map
    others = np.delete(np.arange(V), exact)
    assert np.array_equal(plain[others], alone[others])
    wrong = np.linalg.norm((W[exact] - alone[exact] @ B) @ root, axis=1)
    best = [np.linalg.lstsq((B @ root).T, root @ w, rcond=None)[0] @ B for w in W[exact]]
    least = np.linalg.norm((W[exact] - best) @ root, axis=1)
    assert np.allclose(wrong, least, atol=0.02 * np.linalg.norm(W[exact] @ root, axis=1))
    assert (wrong < np.linalg.norm((W[exact] - plain[exact] @ B) @ root, axis=1)).all()


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


def test_expanded_at_twice_the_width_transformers_gives_the_same_logits(model, text, tmp_path):
    joint = fit_joint(open_source(model), text, rank=2 * 32)
    outcome = execute(joint.plan(expand=True), tmp_path / "t", **QUICK)
    assert torch.allclose(torch_logits(tmp_path / "t"), torch_logits(model), atol=1e-4)
    assert outcome.after.tie is Tie.UNTIED
    assert outcome.measured["after"]["kl"] < 1e-6


@pytest.mark.parametrize("exact_rows", [0, 10])
def test_the_joint_form_and_its_expansion_give_the_same_logits(model, text, tmp_path, exact_rows):
    joint = fit_joint(open_source(model), text, Recipe(24, exact_rows=exact_rows))
    outcome = execute(joint.plan(), tmp_path / "joint", **QUICK)
    execute(joint.plan(expand=True), tmp_path / "expanded", **QUICK)
    from_joint, from_expanded = (
        Decoder.open(tmp_path / name).logits(list(range(4, 40))) for name in ("joint", "expanded")
    )
    assert np.allclose(from_joint, from_expanded, atol=1e-5)
    assert inspect(tmp_path / "joint").tie is Tie.SHARED
    stored = load_file(tmp_path / "joint" / "model.tiebeam.safetensors")
    assert stored["tiebeam.table"].shape == (96, 24)
    assert ("tiebeam.exact_rows" in stored) == bool(exact_rows)
    config = json.loads((tmp_path / "joint" / "config.json").read_text())
    assert config["tiebeam"]["joint"]["rank"] == 24
    assert outcome.measured["after"]["kl"] == pytest.approx(joint.fitted.after.kl, abs=1e-4)


def test_exact_rows_are_stored_unchanged(model, text, tmp_path):
    joint = fit_joint(open_source(model), text, Recipe(8, exact_rows=5))
    execute(joint.plan(), tmp_path / "joint", **QUICK)
    stored, source = load_file(tmp_path / "joint" / "model.tiebeam.safetensors"), load_file(model / "model.safetensors")
    ids = stored["tiebeam.exact_rows"]
    likely = np.argsort(-joint.calibration.weights(), kind="stable")[:5]
    assert ids.tolist() == sorted(likely.tolist())  # the most frequent tokens
    assert np.array_equal(stored["tiebeam.exact_embed"], source["model.embed_tokens.weight"][ids])


def test_three_tenths_of_the_embeddings_are_exact_unless_asked_otherwise(model, text):
    assert len(fit_joint(open_source(model), text, rank=16).fitted.factors.exact) == 29
    assert len(fit_joint(open_source(model), text, rank=16, exact_rows=0).fitted.factors.exact) == 0
    assert len(fit_joint(open_source(model), text, rank=64).fitted.factors.exact) == 0  # exact anyway


def test_exact_embeddings_lower_the_kl(model, text):
    few, many = (fit_joint(open_source(model), text, rank=16, exact_rows=n).fitted.after.kl for n in (0, 48))
    assert many < few


def test_of_many_files_whole_files_are_held_out():
    texts = [f"text {i}" for i in range(20)]
    fitted, held_out = split_documents(texts)
    assert held_out == ["text 7", "text 15"]
    assert sorted([*fitted, *held_out]) == sorted(texts)


def test_of_many_files_of_different_lengths_the_end_of_each_is_held_out():
    texts = ["one two three four five six seven eight " * 50, *["x"] * 7]
    assert split_documents(texts)[1][0].startswith(" ")
    assert 0.1 < sum(map(len, split_documents(texts)[1])) / sum(map(len, texts)) < 0.15


def test_of_a_few_files_the_end_of_each_is_held_out():
    texts = ["\n\n".join(f"{name} {i}" for i in range(100)) for name in "ab"]
    fitted, held_out = split_documents(texts)
    assert [a + b for a, b in zip(fitted, held_out, strict=True)] == texts
    assert all(part.startswith("\n") and 0.1 < len(part) / len(texts[0]) < 0.15 for part in held_out)


def test_every_run_starts_with_the_start_token_where_the_tokenizer_adds_one(model, text, tmp_path):
    shutil.copytree(model, tmp_path / "m")
    tokenizer = Tokenizer(models.WordLevel({"<s>": 1} | {f"w{i}": i for i in range(96) if i != 1}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.save(str(tmp_path / "m" / "tokenizer.json"))
    calibration = calibrate(Decoder.open(tmp_path / "m"), text)
    assert all(run[0] == 1 and 1 not in run[1:] for run in [*calibration.runs, *calibration.held_out])


def test_the_second_moment_and_the_hidden_states_are_those_of_the_runs(model, text):
    decoder = Decoder.open(model)
    calibration = calibrate(decoder, text, most=128)
    assert sum(map(len, calibration.runs)) <= 128
    states = np.concatenate([decoder.hidden(run) for run in calibration.runs])
    assert np.allclose(calibration.C, states.T @ states / len(states), atol=1e-5)
    for run, h in zip(calibration.held_out, calibration.held_out_hidden, strict=True):
        assert np.allclose(h, decoder.hidden(run[:-1]), atol=1e-6)


def test_a_table_that_was_written_wrong_is_refused(model, text, tmp_path, monkeypatch):
    joint = fit_joint(open_source(model), text, Recipe(16, power=1.0), confirm=False)
    assert joint.fitted.after is None
    plan = joint.plan()
    wrong = [replace(e, content=Made.of(bytes(e.nbytes))) if e.name == "tiebeam.table" else e for e in plan.edit.add]
    with pytest.raises(ProofFailed, match="written tables differ"):
        execute(replace(plan, edit=replace(plan.edit, add=tuple(wrong))), tmp_path / "joint", **QUICK)
    assert not (tmp_path / "joint").exists()


def test_no_predicted_loss_is_below_the_original(model, text):
    joint = fit_joint(open_source(model), text, Recipe(16, power=1.0))
    assert joint.fitted.after is not None
    lucky = replace(joint.fitted.after, nats=joint.fitted.before.nats - 0.1)  # lower by chance
    lines = joint.spectrum(lucky)
    assert all(line["nats"] >= joint.fitted.before.nats for line in lines if not line["measured"])
    kls = [line["kl"] for line in lines]
    assert kls == sorted(kls, reverse=True)
    assert kls[-1] == pytest.approx(0, abs=1e-9)
    agreements = [line["agreement"] for line in lines]
    assert agreements == sorted(agreements)
    assert agreements[-1] == pytest.approx(1)


def test_energy_grows_with_rank_up_to_one(model, text):
    lines = fit_joint(open_source(model), text, rank=32).spectrum()
    energies = [line["energy"] for line in lines]
    assert energies == sorted(energies)
    assert energies[-1] == pytest.approx(1)
    assert lines[-1]["rank"] == 64
    assert next(line for line in lines if line["rank"] == 32)["saved"] == 2 * 96 * 32 - 96 * 32 - 2 * 32 * 32 - 29 * 33


def test_the_candidate_of_the_lowest_cost_is_chosen(model, text):
    fitted = fit_joint(open_source(model), text, rank=16).fitted
    cost: dict[float | None, float] = dict(fitted.tried)
    assert len(cost) == len(fitted.tried) >= 2
    assert cost[fitted.recipe.balance] == min(cost.values())


def test_the_cost_of_a_candidate_predicts_its_kl(model, text):
    fitted = fit_joint(open_source(model), text, Recipe(16)).fitted
    cost: dict[float | None, float] = dict(fitted.tried)
    assert 0.5 < fitted.after.kl / cost[fitted.recipe.balance] < 2


def test_sensitivity_predicts_the_kl_of_an_embedding_error(model, text):
    decoder = Decoder.open(model)
    calibration = calibrate(decoder, text)
    E = load_file(model / "model.safetensors")["model.embed_tokens.weight"]
    size = np.float32(0.1 * np.sqrt((E**2).sum(1).mean() / 32))
    one, other = (size * np.random.default_rng(i).standard_normal(E.shape).astype(np.float32) for i in (3, 4))
    runs = HeldOut(decoder, calibration.runs)
    sensitivity = embedding_sensitivity(runs, Table(E + one))
    ids = np.concatenate([run[:-1] for run in runs.runs])
    energy = float((other[ids] ** 2).sum(1).mean())
    kl = runs.measure(decoder.with_tables(Table(E + other), decoder.head)).kl
    assert kl == pytest.approx(0.5 * sensitivity * energy, rel=0.3)


def test_held_out_measurement_agrees_with_divergence(model, text):
    from tiebeam.decode import divergence

    joint = fit_joint(open_source(model), text, rank=16)
    rows, vocab, _ = pair_rows(joint.source)
    decoder = joint.held_out.original
    joined = decoder.with_tables(*tables_of(rows, vocab, joint.fitted.factors))
    run = joint.held_out.runs[0]
    ours, theirs = HeldOut(decoder, [run]).measure(joined), divergence(decoder, joined, run)
    assert ours.kl == pytest.approx(theirs.kl, rel=1e-3, abs=1e-6)
    assert ours.nats == pytest.approx(theirs.after.nats_per_token, rel=1e-5)
    assert ours.agreement == theirs.agreement


def test_held_out_tokens_are_not_counted(model, text):
    decoder = Decoder.open(model)
    calibration = calibrate(decoder, text)
    held = sum(len(run) for run in calibration.held_out)
    assert calibration.counts.sum() + held == pytest.approx(calibration.tokens)
    assert [token for run in calibration.held_out for token in run] == decoder.encode(text)[-held:]  # the end of it
    for power in (0.5, 1.0):
        weights = calibration.weights(power=power)
        assert weights.sum() == pytest.approx(1)
        assert (weights > 0).all()
    assert calibration.weights(power=0.5).max() < calibration.weights(power=1.0).max()


def test_frequent_rows_are_fitted_better_when_weighted_by_counts(model, text):
    case = open_source(model)
    decoder, (rows, vocab, _) = Decoder.open(model), pair_rows(case)
    calibration = calibrate(decoder, text)
    held_out = HeldOut(decoder, calibration.held_out)
    often = np.argsort(calibration.counts)[-10:]
    errors = {}
    for name, recipe in {
        "counts": Recipe(16, power=1.0, ridge=None, uniform=1e-6, predicted=0.0, exact_rows=0),
        "alike": Recipe(16, power=1.0, ridge=None, uniform=1.0, predicted=0.0, exact_rows=0),
    }.items():
        factors = fit(held_out, rows, calibration, recipe).factors
        E, W = rows(0, vocab)
        errors[name] = np.linalg.norm((factors.rows(rows_of(E, W), 0, len(E)) @ factors.head_map - W)[often])
    assert errors["counts"] < errors["alike"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [({"rank": 65}, "between 1 and 64"), ({"exact_rows": 1000}, "exceeds the vocabulary of 96")],
)
def test_out_of_range_arguments_are_refused(model, text, options, sentence):
    with pytest.raises(BadRequest, match=sentence):
        fit_joint(open_source(model), text, **options)


def test_too_little_text_is_refused(model):
    with pytest.raises(BadRequest, match="too few to calibrate"):
        fit_joint(open_source(model), "w1 w2 w3")


def test_a_model_that_no_engine_can_run_is_refused_with_the_reason(tmp_path, text, monkeypatch):
    build("mamba", tie_word_embeddings=False).save_pretrained(tmp_path / "m")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UnreadableInput, match=r"'mamba'.*needs the extra \[hf\]"):
        fit_joint(open_source(tmp_path / "m"), text)


def test_a_model_that_only_transformers_runs_is_tied_jointly_in_both_forms(model, tmp_path, text):
    build("opt", tie_word_embeddings=False).save_pretrained(tmp_path / "m")
    shutil.copy(model / "tokenizer.json", tmp_path / "m")
    joint = fit_joint(open_source(tmp_path / "m"), text, Recipe(rank=2 * 32, power=1.0))
    assert joint.fitted.after.kl < 1e-5  # twice the width keeps everything
    for expand in (False, True):
        outcome = execute(joint.plan(expand), tmp_path / f"t{expand}", **QUICK)
        assert outcome.measured["after"]["kl"] < 1e-5
    with torch.no_grad():
        loaded = tiebeam.load(tmp_path / "tFalse")(input_ids=torch.arange(4, 40)[None]).logits
    for logits in (loaded, torch_logits(tmp_path / "tTrue")):
        assert torch.allclose(logits, torch_logits(tmp_path / "m"), atol=1e-4)


def test_a_tied_model_has_no_two_matrices_to_fit(tmp_path, text):
    build("llama", tie_word_embeddings=True).save_pretrained(tmp_path / "m")
    with pytest.raises(BadRequest, match="no two matrices"):
        fit_joint(open_source(tmp_path / "m"), text)


def test_distillation_lowers_the_kl_and_is_written(model, text, tmp_path):
    joint = fit_joint(open_source(model), text, rank=8)
    distilled, done = joint.distilled(0.05)
    assert done.rounds >= 1
    assert done.after.kl < done.before.kl == joint.fitted.after.kl
    outcome = execute(distilled.plan(), tmp_path / "joint", **QUICK)
    assert outcome.measured["after"]["kl"] == pytest.approx(done.after.kl, abs=1e-4)


def test_distillation_resumes_where_it_stopped(model, text, tmp_path):
    joint = fit_joint(open_source(model), text, rank=8)
    _, first = joint.distilled(1e-6, tmp_path / "t")  # one round
    state = tmp_path / "t.distill" / "state.safetensors"
    assert state.exists()
    _, second = joint.distilled(first.minutes + 1e-6, tmp_path / "t")
    assert second.rounds > first.rounds
    assert second.minutes > first.minutes
    assert second.after.kl <= first.after.kl
    other = fit_joint(open_source(model), text, rank=9)  # another fit does not resume from this state
    _, third = other.distilled(1e-6, tmp_path / "t")
    assert third.rounds == 1


def test_tie_with_joint_fits_writes_and_removes_the_distillation_state(model, text, tmp_path):
    (tmp_path / "text.txt").write_text(text)
    outcome = tie(
        model, tmp_path / "t", joint=True, text=tmp_path / "text.txt", rank=16, exact_rows=3, distill=0.01, **QUICK
    )
    assert outcome.after.tie is Tie.SHARED
    stored = load_file(tmp_path / "t" / "model.tiebeam.safetensors")
    assert stored["tiebeam.table"].shape == (96, 16)
    assert len(stored["tiebeam.exact_rows"]) == 3
    assert sorted(p.name for p in tmp_path.iterdir()) == ["t", "text.txt"]


def test_tie_with_joint_needs_text(model, tmp_path):
    with pytest.raises(BadRequest, match='joint=True needs text="FILE"'):
        tie(model, tmp_path / "t", joint=True)


@pytest.mark.parametrize("dtype", ["F16", "BF16", "F32"])
def test_encoding_rounds_to_nearest(dtype):
    values = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    kind = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32}[dtype]
    expected = torch.tensor(values).to(kind).to(torch.float32).numpy()
    assert np.array_equal(dtypes.decode(dtype, dtypes.encode(dtype, values), (1000,)).astype(np.float32), expected)


def test_a_long_text_is_encoded_in_pieces_of_whole_lines(model, text, monkeypatch):
    decoder = Decoder.open(model)
    lines = text.replace(" w1 ", "\n")
    whole = calibrate(decoder, lines)
    monkeypatch.setattr(calibration_module, "_PIECE", 200)
    pieces = calibrate(decoder, lines)
    assert pieces.runs == whole.runs
    assert np.array_equal(pieces.counts, whole.counts)


def test_every_long_file_counts_alike_and_gives_as_many_tokens(model, monkeypatch):
    decoder = Decoder.open(model)
    monkeypatch.setattr(calibration_module, "_FULL", 500)
    calibration = calibrate(decoder, ["w1 " * 20_000, "w2 " * 1000, "w3 " * 50], most=2048, held_out_most=512)
    shares = calibration.read[[1, 2, 3]]
    assert shares[0] == pytest.approx(shares[1])
    assert shares[2] == pytest.approx(shares[1] * 44 / 500, rel=0.1)  # an eighth of its 50 tokens is held out
    sizes = [sum(run.count(token) for run in calibration.runs) for token in (1, 2)]
    assert 0.7 < sizes[0] / sizes[1] < 1.5


def test_a_large_model_runs_in_transformers_and_its_embedding_stays_in_the_file(model, text, tmp_path, monkeypatch):
    small = fit_joint(open_source(model), text, Recipe(16, balance=1.0))
    monkeypatch.setattr(joint_tie, "_LARGE", 0)
    large = fit_joint(open_source(model), text, Recipe(16, balance=1.0))
    engine = large.held_out.original
    assert isinstance(engine, TransformersEngine)
    assert isinstance(engine.embed.rows, LazyRows)
    assert engine.model.get_input_embeddings().weight.untyped_storage().nbytes() == 4
    assert large.fitted.after.kl == pytest.approx(small.fitted.after.kl, rel=1e-3)
    outcome = execute(large.plan(), tmp_path / "joint", **QUICK)
    assert outcome.measured["after"]["kl"] == pytest.approx(small.fitted.after.kl, rel=1e-3)
