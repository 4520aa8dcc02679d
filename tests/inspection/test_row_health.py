"""Row health: every kind of row at its place, against a slow, obvious check; in every stored type; in a real model."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import tiebeam
from helpers.tiny_ggufs import write_gguf
from helpers.tiny_models import build
from helpers.tiny_tokenizers import write_tokenizer
from tiebeam.checkpoint import open_checkpoint
from tiebeam.doctor import Severity, diagnose
from tiebeam.inspection.row_health import KINDS, RowHealth, row_health

V, D = 320, 64
EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


def trained(seed: int = 0, rows: int = V) -> torch.Tensor:
    """Rows that share a direction and vary in length, as trained rows do."""
    g = torch.Generator().manual_seed(seed)
    lengths = 0.6 + torch.rand(rows, 1, generator=g)
    return lengths * (torch.randn(rows, D, generator=g) * 0.08 + 0.06 * torch.randn(D, generator=g))


def write(where: Path, embed: torch.Tensor, head: torch.Tensor | None = None, ids: int | None = None) -> Path:
    where.mkdir(exist_ok=True)
    tensors = {EMBED: embed} if head is None else {EMBED: embed, HEAD: head}
    save_file({name: t.contiguous() for name, t in tensors.items()}, where / "model.safetensors")
    config = {"model_type": "llama", "vocab_size": len(embed), "hidden_size": D, "tie_word_embeddings": head is None}
    (where / "config.json").write_text(json.dumps(config))
    if ids:
        write_tokenizer(where, ids)
    return where


def read(where: Path) -> RowHealth:
    checkpoint = open_checkpoint(where)
    return row_health(checkpoint, tiebeam.inspect(checkpoint))


def kinds(health: RowHealth, matrix: int = 0) -> dict[str, list[int]]:
    return {group.kind: list(group.rows) for group in health.matrices[matrix].groups}


def spoiled() -> tuple[torch.Tensor, dict[str, list[int]]]:
    x = trained()
    g = torch.Generator().manual_seed(1)
    x[3, 5] = float("nan")
    x[4, 6] = float("-inf")
    x[[10, 200]] = 0.0
    x[[20, 21, 300]] = trained(7, 1)
    x[40:44] = torch.randn(4, D, generator=g) * 0.02
    x[60] *= 0.01
    x[61] *= 40
    mean = x[torch.isfinite(x).all(dim=1)].mean(dim=0)
    x[70:72] = mean + 1e-4 * torch.randn(2, D, generator=g)
    expected = {
        "nan": [3], "inf": [4], "zero": [10, 200], "identical": [20, 21, 300], "untouched": [40, 41, 42, 43],
        "mean": [70, 71], "small": [60], "large": [61],
    }  # fmt: skip
    return x, expected


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_kind_of_row_is_found_at_its_place(dtype: str, tmp_path: Path) -> None:
    x, expected = spoiled()
    assert kinds(read(write(tmp_path, x.to(DTYPES[dtype])))) == expected


def test_each_matrix_is_read_for_itself(tmp_path: Path) -> None:
    x, expected = spoiled()
    health = read(write(tmp_path, trained(3), x))
    assert [(m.role, m.name) for m in health.matrices] == [("embed", EMBED), ("head", HEAD)]
    assert kinds(health, 0) == {}
    assert kinds(health, 1) == expected


def test_trained_rows_have_no_findings(tmp_path: Path) -> None:
    assert kinds(read(write(tmp_path, trained(5)))) == {}


def test_rows_are_not_called_untouched_where_trained_rows_have_the_norms_of_fresh_ones(tmp_path: Path) -> None:
    """As in TinyLlama, whose trained rows have norms on both sides of 0.02 * sqrt(D)."""
    g = torch.Generator().manual_seed(0)
    x = (0.2 + 2.2 * torch.rand(V, 1, generator=g)) * 0.02 * torch.randn(V, D, generator=g)
    x[5:9] = torch.randn(4, D, generator=g) * 0.02
    assert "untouched" not in kinds(read(write(tmp_path, x)))


def test_rows_across_blocks_are_the_rows_of_one_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, expected = spoiled()
    where = write(tmp_path, x)
    for size in (1, 3 * D * 4, 1 << 30):
        monkeypatch.setattr("tiebeam.inspection.row_health._BLOCK_BYTES", size)
        assert kinds(read(where)) == expected


def test_zero_and_identical_rows_are_those_of_a_slow_check(tmp_path: Path) -> None:
    g = np.random.default_rng(0)
    x = g.integers(-1, 2, (400, D)).astype(np.float32)
    x[g.integers(0, 400, 60)] = x[:6].repeat(10, axis=0)
    x[g.integers(0, 400, 9)] = 0
    found = kinds(read(write(tmp_path, torch.from_numpy(x))))
    raw = [row.tobytes() for row in x + 0.0]
    zero = [i for i, row in enumerate(x) if not row.any()]
    assert found["zero"] == zero
    assert found["identical"] == [i for i, row in enumerate(raw) if raw.count(row) >= 3 and i not in zero]


def test_a_table_as_transformers_initializes_it_is_untouched(tmp_path: Path) -> None:
    model = build("llama", vocab_size=V, hidden_size=D, tie_word_embeddings=True, pad_token_id=None)
    model.save_pretrained(tmp_path)
    found = kinds(read(tmp_path))
    assert set(found) == {"untouched"}
    assert len(found["untouched"]) > 0.95 * V


def test_rows_that_resize_adds_are_found(tmp_path: Path) -> None:
    """transformers starts new rows at the mean of the old ones (mean_resizing)."""
    model = build("llama", vocab_size=V, hidden_size=D, tie_word_embeddings=True)
    model.get_input_embeddings().weight.data = trained(2)
    model.resize_token_embeddings(V + 5)
    model.save_pretrained(tmp_path)
    assert kinds(read(tmp_path)) == {"mean": list(range(V, V + 5))}


def test_tokens_with_the_norm_of_the_padding_are_found(tmp_path: Path) -> None:
    x = trained(4)
    g = torch.Generator().manual_seed(9)
    x[300:] = torch.nn.functional.normalize(torch.randn(20, D, generator=g), dim=1) * 0.3
    x[[17, 18]] = torch.nn.functional.normalize(torch.randn(2, D, generator=g), dim=1) * 0.3
    health = read(write(tmp_path, x, ids=300))
    assert kinds(health) == {"padding": [17, 18, *range(300, 320)]}
    assert all(row < 300 for group in health.matrices[0].groups for row in group.producible)


def test_what_the_tokenizer_can_produce_is_what_it_encodes(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    x = trained(6)
    x[:] = 0
    health = read(write(tmp_path, x, ids=300))
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    (group,) = health.matrices[0].groups
    assert group.kind == "zero"
    alone = {i: tokenizer.decode([i], skip_special_tokens=False) for i in range(300)}
    expected = {i for i, text in alone.items() if "\ufffd" in text or i in tokenizer.encode(text).ids}
    assert set(group.producible) == expected
    assert 0 < len(expected) <= 300
    assert health.texts[299] == tokenizer.id_to_token(299)


def test_untrained_rows_are_a_warning_if_the_tokenizer_can_produce_them_else_a_note(tmp_path: Path) -> None:
    x = trained(8)
    x[310:] = 0
    where = write(tmp_path, x, ids=300)
    (note,) = [f for f in diagnose(where, rows=True).findings if f.code == "TB707"]
    assert note.severity is Severity.NOTE
    x[290:] = 0
    (warning,) = [f for f in diagnose(write(tmp_path, x), rows=True).findings if f.code == "TB707"]
    assert warning.severity is Severity.WARNING
    assert "30 zero" in warning.evidence
    assert "TB707" not in [f.code for f in diagnose(where).findings]


@pytest.mark.parametrize("store", ["F32", "Q8_0", "Q4_0"])
def test_rows_of_a_gguf_are_read_in_its_types(store: str, tmp_path: Path) -> None:
    model = build("llama", vocab_size=V, hidden_size=D, intermediate_size=64, tie_word_embeddings=True)
    x = trained(0)
    x[[10, 200]] = 0.0
    x[61] *= 40
    model.get_input_embeddings().weight.data = x
    found = kinds(read(write_gguf(model, tmp_path / "m.gguf", store)))
    assert found == {"zero": [10, 200], "large": [61]}


def test_packed_rows_are_skipped_and_said_so(tmp_path: Path) -> None:
    where = write(tmp_path, trained())
    codes = {EMBED: torch.zeros(V, D // 8, dtype=torch.uint32), "model.embed_tokens.scales": torch.ones(V, D // 32)}
    save_file(codes, where / "model.safetensors")
    health = read(where)
    assert health.matrices == ()
    assert health.skipped == (f"{EMBED} is packed; its rows were not read",)


def test_tiny_and_empty_tables_do_not_fail(tmp_path: Path) -> None:
    for shape in ((0, 8), (1, 8), (2, 1), (5, 0)):
        assert set(kinds(read(write(tmp_path, torch.zeros(shape))))) <= set(KINDS)


@pytest.mark.parametrize("shape", [[0, 2**31], [2**31, 0]])
def test_the_other_dimension_of_an_empty_table_takes_no_memory(shape: list[int], tmp_path: Path) -> None:
    where = write(tmp_path, trained())
    header = json.dumps({EMBED: {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}).encode()
    (where / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    tracemalloc.start()
    try:
        assert kinds(read(where)) == {}
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()


def test_the_unused_tokens_of_a_real_model_are_found(smollm2: Path) -> None:
    """SmolLM2 reserved special tokens that its training never used: their rows are identical."""
    health = read(smollm2)
    (group,) = health.matrices[0].groups
    assert group.kind == "identical"
    assert {"<file_sep>", "<jupyter_start>", "<empty_output>"} <= {health.texts[row] for row in group.rows}
