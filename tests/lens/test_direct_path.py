"""The closed forms, compared with the explicit V x V matrix of tiny models."""

import subprocess
import sys

import numpy as np
import pytest

from helpers.building import DIM, VOCAB, llama_config, table, write_model
from helpers.tiny_models import build
from tiebeam.errors import BadRequest, UnreadableInput
from tiebeam.lens import direct_path, spectral_density
from tiebeam.lens.direct_path import Lens
from tiebeam.lens.lens_report import effective_rank, norms_by_frequency, report_of, spearman
from tiebeam.lens.matrix_energy import energy_of

WIDE = 96
FLOAT32 = 1e-7  # of what is estimated, the sums over the rows are products in float32
GAIN = np.linspace(0.5, 1.5, DIM).astype(np.float32)


def model(where, tied):
    tensors = {"model.embed_tokens.weight": table(0), "model.norm.weight": GAIN}
    if not tied:
        tensors["lm_head.weight"] = table(1)
    return write_model(where, tensors, llama_config(tie_word_embeddings=tied, rms_norm_eps=1e-5))


def explicit(tied, norm):
    E, W = table(0).astype(np.float64), table(0 if tied else 1).astype(np.float64)
    F = E / np.sqrt((E**2).mean(axis=1, keepdims=True) + 1e-5) * GAIN if norm else E
    return E, F, W, F @ W.T


@pytest.fixture(params=[(True, True), (True, False), (False, True), (False, False)], ids=str)
def case(request, tmp_path, monkeypatch):
    tied, norm = request.param
    monkeypatch.setattr(direct_path, "_BLOCK_BYTES", 1)  # several blocks, the last one short
    return Lens.open(model(tmp_path / "m", tied), norm=norm), *explicit(tied, norm)


def test_energy_of_the_whole_path_equals_that_of_the_matrix(case):
    lens, _, _, _, M = case
    found, S = lens.energy, (M + M.T) / 2
    values = np.linalg.eigvalsh(S)
    assert found.norm == pytest.approx(np.linalg.norm(M), rel=1e-6)
    assert found.symmetric == pytest.approx((S**2).sum() / (M**2).sum(), abs=1e-6)
    assert found.antisymmetric == pytest.approx(1 - (S**2).sum() / (M**2).sum(), abs=1e-6)
    assert found.negative == pytest.approx((values[values < 0] ** 2).sum() / (S**2).sum(), abs=1e-6)
    assert found.rank == np.linalg.matrix_rank(M) == DIM
    assert energy_of(M).negative == pytest.approx(found.negative, abs=1e-6)


def test_spectrum_equals_that_of_the_matrix(case):
    lens, _, _, _, M = case
    np.testing.assert_allclose(lens.spectrum, np.linalg.svd(M, compute_uv=False)[:DIM], rtol=1e-5)


def test_self_logits_and_row_norms(case):
    lens, E, _, W, M = case
    np.testing.assert_allclose(lens.self_logits, np.diag(M), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(lens.norms[0], np.linalg.norm(E, axis=1), rtol=1e-6)
    np.testing.assert_allclose(lens.norms[1], np.linalg.norm(W, axis=1), rtol=1e-6)


def test_angles_equal_those_between_the_tables(case):
    lens, E, _, W, _ = case
    one, two = np.linalg.qr(E)[0], np.linalg.qr(W)[0]
    expected = np.arccos(np.clip(np.linalg.svd(one.T @ two, compute_uv=False), -1, 1))
    np.testing.assert_allclose(lens.angles, expected, atol=1e-5)


def test_joint_spectrum_equals_that_of_the_concatenated_tables(case):
    lens, E, _, W, _ = case
    both = np.concatenate([E / np.linalg.norm(E), W / np.linalg.norm(W)], axis=1)
    squares = np.linalg.svd(both, compute_uv=False) ** 2
    np.testing.assert_allclose(lens.joint_spectrum, squares / squares.sum(), atol=1e-9)


def test_chosen_tokens_give_a_submatrix(case):
    lens, _, _, _, M = case
    ids = [3, 17, 39, 3]
    np.testing.assert_allclose(lens.direct(ids).matrix, M[np.ix_(ids, ids)], rtol=1e-4, atol=1e-5)


def test_continuations_and_neighbours_are_the_best_of_all(case):
    lens, E, _, W, M = case
    for ids in ([5], [0, VOCAB - 1]):
        for i, row in zip(ids, lens.continuations(ids, 5), strict=True):
            assert [j for j, _ in row] == np.argsort(-M[i])[:5].tolist()
        for name, T in (("embed", E), ("head", W)):
            unit = T / np.linalg.norm(T, axis=1, keepdims=True)
            for i, row in zip(ids, lens.neighbours(ids, name, 4), strict=True):
                assert [j for j, _ in row] == [j for j in np.argsort(-(unit @ unit[i])) if j != i][:4]


def test_tied_path_without_a_norm_is_semidefinite_and_symmetric(tmp_path):
    found = Lens.open(model(tmp_path / "m", True), norm=False).energy
    assert found.negative < 1e-12
    assert found.antisymmetric < 1e-12


def test_rank_deficient_tables_have_as_many_angles_as_ranks(tmp_path):
    thin = table(0)[:, :3] @ np.random.default_rng(2).standard_normal((3, DIM)).astype(np.float32)
    tensors = {"model.embed_tokens.weight": thin, "lm_head.weight": table(1), "model.norm.weight": GAIN}
    lens = Lens.open(write_model(tmp_path / "m", tensors, llama_config(tie_word_embeddings=False)))
    assert len(lens.angles) == 3
    lens = Lens.open(tmp_path / "m", norm=False)
    assert lens.energy.rank == 3


def test_an_unknown_architecture_is_used_as_stored_with_a_note(tmp_path):
    tensors = {"model.embed_tokens.weight": table(0), "lm_head.weight": table(1)}
    config = {
        **llama_config(tie_word_embeddings=False),
        "model_type": "nobodys",
        "architectures": ["NobodysForCausalLM"],
    }
    lens = Lens.open(write_model(tmp_path / "m", tensors, config))
    assert "without a final norm" in lens.tables.notes[0]
    assert not lens.norm
    np.testing.assert_allclose(lens.direct([1, 2]).matrix, table(0)[[1, 2]] @ table(1)[[1, 2]].T, rtol=1e-5)


def test_scales_are_applied_where_the_decoder_cannot_run_the_model(tmp_path) -> None:
    tensors = {"model.embed_tokens.weight": table(0), "lm_head.weight": table(1)}
    config = {**llama_config(tie_word_embeddings=False), "model_type": "minicpm3", "scale_emb": 3, "dim_model_base": 8}
    where = write_model(tmp_path / "m", tensors, config)
    plain = table(0)[[1, 2]] @ table(1)[[1, 2]].T
    np.testing.assert_allclose(Lens.open(where).direct([1, 2]).matrix, plain * 3 * 8 / DIM, rtol=1e-5)
    np.testing.assert_allclose(Lens.open(where, scales=False).direct([1, 2]).matrix, plain, rtol=1e-5)


def test_granites_embedding_and_logit_scales_are_applied(tmp_path) -> None:
    tensors = {"model.embed_tokens.weight": table(0), "lm_head.weight": table(1), "model.norm.weight": GAIN}
    scales = {"embedding_multiplier": 12.0, "logits_scaling": 8.0}
    config = {**llama_config(tie_word_embeddings=False), "model_type": "granite", **scales}
    lens = Lens.open(write_model(tmp_path / "m", tensors, config), norm=False)
    plain = table(0)[[1, 2]] @ table(1)[[1, 2]].T
    np.testing.assert_allclose(lens.direct([1, 2]).matrix, plain * 12 / 8, rtol=1e-5)


def test_a_model_without_a_head_has_no_path(tmp_path):
    where = write_model(
        tmp_path / "m", {"model.embed_tokens.weight": table(0)}, llama_config(tie_word_embeddings=False)
    )
    with pytest.raises(UnreadableInput, match="headless"):
        Lens.open(where)


@pytest.mark.parametrize("ids", [[], [VOCAB], [-1]])
def test_ids_outside_the_vocabulary_are_refused(tmp_path, ids):
    with pytest.raises(BadRequest):
        Lens.open(model(tmp_path / "m", True)).direct(ids)


def test_a_report_without_tokens_covers_the_whole_vocabulary(tmp_path):
    found = report_of(Lens.open(model(tmp_path / "m", False)))
    assert "chosen" not in found
    assert found["joint"][-1]["kept"] == pytest.approx(1.0)
    assert not found["one_table"]


def test_norms_by_frequency_count_every_token_once():
    random = np.random.default_rng(0)
    counts = random.integers(0, 1000, 200)
    found = norms_by_frequency((random.random(200), counts.astype(float)), counts)
    assert sum(row["tokens"] for row in found["rows"]) + found["unseen"]["tokens"] == 200
    assert found["spearman"]["head"] == pytest.approx(1.0)
    assert abs(found["spearman"]["embed"]) < 0.3


def test_rank_correlation_gives_ties_their_mean_rank():
    assert spearman(np.array([1.0, 1, 2, 3]), np.array([5.0, 5, 7, 9])) == pytest.approx(1.0)
    assert spearman(np.array([1.0, 2, 3]), np.array([9.0, 5, 1])) == pytest.approx(-1.0)
    assert spearman(np.ones(3), np.array([1.0, 2, 3])) is None


def test_effective_rank_of_equal_values_is_their_number():
    assert effective_rank(np.ones(7)) == pytest.approx(7)
    assert effective_rank(np.zeros(3)) == 0


def test_tied_means_equal_numbers_not_equal_column_spaces(tmp_path):
    assert Lens.open(model(tmp_path / "tied", True)).one_table
    turned = table(0) @ np.random.default_rng(3).standard_normal((DIM, DIM)).astype(np.float32)
    tensors = {"model.embed_tokens.weight": table(0), "lm_head.weight": turned, "model.norm.weight": GAIN}
    lens = Lens.open(write_model(tmp_path / "m", tensors, llama_config(tie_word_embeddings=False)))
    assert lens.angles.max() < 1e-3
    assert not lens.one_table


def test_print_shows_the_headline_and_the_figures(tmp_path):
    for tied, words in ((True, "tied"), (False, "untied")):
        lens = Lens.open(model(tmp_path / words, tied))
        headline, *rows = str(lens).splitlines()
        assert headline == f"{tmp_path / words} · {words} · {VOCAB} x {DIM} · with the final norm"
        names = [row.split()[0] for row in rows]
        assert names == ["symmetric", "negative", "rank", "self-logits"] + ([] if tied else ["angles", "joint"])
        assert f"{100 * lens.energy.symmetric:.1f}%" in rows[0]
        assert repr(lens) == f"<Lens of {tmp_path / words}: {VOCAB} x {DIM}>"


def test_html_escapes_the_name_of_the_model(tmp_path):
    found = Lens.open(model(tmp_path / "<b>", False))._repr_html_()
    assert "&lt;b&gt;" in found
    assert "<b>" + str(tmp_path) in found  # only the tag of the headline
    assert found.count("<tr>") == 6


def test_the_lens_is_public_and_lazy():
    program = (
        "import sys, tiebeam\n"
        "assert 'numpy' not in sys.modules\n"
        "import tiebeam.lens\n"
        "assert 'numpy' not in sys.modules\n"
        "assert tiebeam.Lens is tiebeam.lens.Lens\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("kind", ["opt", "bloom", "gptj", "mamba", "falcon", "olmo", "xglm"])
def test_a_family_that_numpy_lacks_gets_its_final_norm_from_transformers(kind, tmp_path):
    torch = pytest.importorskip("torch")
    saved = build(kind)
    with torch.no_grad():
        for parameter in saved.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    saved.save_pretrained(tmp_path)
    lens = Lens.open(tmp_path)
    assert lens.norm
    assert lens.tables.notes == ()
    seen = []
    for module in saved.modules():
        if "norm" in type(module).__name__.lower():
            module.register_forward_hook(lambda module, inputs, output: seen.append((inputs[0], output)))
    with torch.no_grad():
        saved(input_ids=torch.tensor([[5, 6, 7]]))
    x, expected = seen[-1]  # the last norm that runs
    np.testing.assert_allclose(lens.tables.final_norm(x[0].numpy()), expected[0].numpy(), atol=1e-6)


def test_without_transformers_the_note_names_the_extra(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    build("opt").save_pretrained(tmp_path)
    monkeypatch.setitem(sys.modules, "transformers", None)
    lens = Lens.open(tmp_path)
    assert not lens.norm
    assert "needs the extra [hf]" in lens.tables.notes[0]
    assert "[hf]" not in Lens.open(tmp_path, norm=False).tables.notes[0]


def estimated(where, tied, monkeypatch):
    """The same model twice: solved, and estimated with few leading eigenvalues, so that most are sampled."""
    monkeypatch.setattr(spectral_density, "_LEADING", 4)
    monkeypatch.setattr(spectral_density, "_SPARE", 4)
    wide = np.random.default_rng(3)
    scale = np.arange(1, WIDE + 1) ** -0.5
    E = (wide.standard_normal((600, WIDE)) * scale + 0.3).astype(np.float32)
    W = (0.5 * E + 0.5 * wide.standard_normal((600, WIDE))).astype(np.float32)
    tensors = {"model.embed_tokens.weight": E, "model.norm.weight": np.ones(WIDE, np.float32)}
    if not tied:
        tensors["lm_head.weight"] = W
    config = llama_config(tie_word_embeddings=tied, hidden_size=WIDE, vocab_size=600)
    path = write_model(where / "wide", tensors, config)
    return Lens.open(path, exact=True), Lens.open(path, exact=False)


@pytest.mark.parametrize("tied", [True, False])
def test_the_estimates_are_within_their_stated_error_of_the_solved_values(tied, tmp_path, monkeypatch):
    solved, guess = estimated(tmp_path, tied, monkeypatch)
    assert solved.errors == {}
    assert set(guess.errors) == ({"negative"} if tied else {"negative", "joint"})
    assert abs(guess.energy.negative - solved.energy.negative) <= guess.errors["negative"] < 0.05
    partial_sums = np.abs(np.cumsum(guess.joint_spectrum) - np.cumsum(solved.joint_spectrum))
    assert partial_sums.max() <= (FLOAT32 if tied else guess.errors["joint"]) < 0.05
    assert guess.joint_spectrum.sum() == pytest.approx(1)


def test_what_needs_no_estimate_is_the_same_in_both_ways(tmp_path, monkeypatch):
    solved, guess = estimated(tmp_path, False, monkeypatch)
    assert guess.energy.symmetric == pytest.approx(solved.energy.symmetric, abs=FLOAT32)
    assert guess.energy.rank == solved.energy.rank
    np.testing.assert_allclose(guess.spectrum, solved.spectrum, rtol=1e-5)
    np.testing.assert_allclose(guess.angles, solved.angles, atol=1e-6)


def test_the_leading_eigenvalues_are_those_of_the_matrix(tmp_path):
    random = np.random.default_rng(4)
    turn = np.linalg.qr(random.standard_normal((80, 80)))[0]
    values = np.concatenate([[9.0, -7.0, 5.0], np.linspace(-1, 1, 77)])
    A = turn * values @ turn.T
    found = spectral_density.spectral_density(lambda x: x, lambda x: A @ x, random.standard_normal((80, 8)))
    np.testing.assert_allclose(found.leading[:3], [9, -7, 5], rtol=1e-9)
    assert len(found.leading) == 20


def test_a_wide_model_is_estimated_unless_asked_otherwise(tmp_path, monkeypatch):
    monkeypatch.setattr(direct_path, "_EXACT", 2 * DIM - 1)
    path = model(tmp_path / "m", False)
    assert not Lens.open(path).exact
    assert Lens.open(path, exact=True).exact
    found = report_of(Lens.open(path))
    assert found["exact"] is False
    assert "±" in str(Lens.open(path))
    assert "±" not in str(Lens.open(path, exact=True))
    assert report_of(Lens.open(path)) == found  # the probes are the same every time
    monkeypatch.setattr(direct_path, "_EXACT", 2 * DIM)
    assert Lens.open(path).exact


def test_rank_deficient_tables_are_estimated_too(tmp_path):
    thin = table(0)[:, :3] @ np.random.default_rng(2).standard_normal((3, DIM)).astype(np.float32)
    tensors = {"model.embed_tokens.weight": thin, "lm_head.weight": table(1), "model.norm.weight": GAIN}
    path = write_model(tmp_path / "m", tensors, llama_config(tie_word_embeddings=False))
    solved, guess = Lens.open(path, norm=False, exact=True), Lens.open(path, norm=False, exact=False)
    assert guess.energy.rank == solved.energy.rank == 3
    assert guess.energy.negative == pytest.approx(solved.energy.negative, abs=guess.errors["negative"] + 1e-9)


def test_a_pair_that_float32_cannot_resolve_is_summed_again_in_float64(tmp_path):
    close = table(0)
    close[:, 1] = close[:, 0] + 1e-4 * close[:, 1]  # nearly the same column
    tensors = {"model.embed_tokens.weight": close, "lm_head.weight": table(1), "model.norm.weight": GAIN}
    path = write_model(tmp_path / "m", tensors, llama_config(tie_word_embeddings=False))
    stages = []
    guess = Lens.open(path, exact=False, progress=lambda stage, done, total: stages.append(stage))
    solved = Lens.open(path, exact=True)
    np.testing.assert_allclose(guess.spectrum, solved.spectrum, rtol=1e-6)
    assert guess.energy.rank == solved.energy.rank == DIM
    assert any("again" in stage for stage in stages)
    np.testing.assert_allclose(guess.norms, solved.norms, rtol=1e-12)


def test_a_tied_table_that_differs_in_one_late_row_is_two_tables(tmp_path, monkeypatch):
    monkeypatch.setattr(direct_path, "_BLOCK_BYTES", 1)
    E = np.concatenate([table(0)] * 4)  # more rows than a block
    W = E.copy()
    W[-1] += 1
    tensors = {"model.embed_tokens.weight": E, "lm_head.weight": W, "model.norm.weight": GAIN}
    path = write_model(tmp_path / "m", tensors, llama_config(tie_word_embeddings=False, vocab_size=len(E)))
    for exact, near in ((True, 1e-12), (False, 1e-6)):
        lens = Lens.open(path, exact=exact)
        assert not lens.one_table
        np.testing.assert_allclose(
            lens.table_gram, np.block([[E.T @ E, E.T @ W], [W.T @ E, W.T @ W]]), rtol=1e-5, atol=1e-4
        )
        np.testing.assert_allclose(lens.table_gram, Lens.open(path, exact=True).table_gram, rtol=near, atol=near * 100)
