"""Equal means the same numbers; a difference is measured exactly or on a sample."""

import numpy as np
import pytest
from safetensors.numpy import save_file

from helpers.building import table
from tiebeam import equality
from tiebeam.checkpoint import open_checkpoint
from tiebeam.equality import compare


def verdict(tmp_path, embed, head):
    save_file({"embed": embed, "head": head}, tmp_path / "m.safetensors")
    return compare(open_checkpoint(tmp_path / "m.safetensors"), "embed", "head")


def test_identical_bytes_are_equal(tmp_path):
    found = verdict(tmp_path, table(), table())
    assert found.equal
    assert found.difference is None


def test_unrelated_tables_differ_in_every_row_with_a_cosine_near_zero(tmp_path):
    found = verdict(tmp_path, table(0, 2000, 64), table(1, 2000, 64))
    assert not found.equal
    assert found.difference.rows_differing == found.difference.rows
    assert found.difference.sampled
    assert abs(found.difference.median_cosine) < 0.1
    assert not found.difference.few_rows


@pytest.mark.parametrize("rows", [[0], [1999], [3, 700, 1500]])
def test_few_changed_rows_are_counted_exactly(tmp_path, rows):
    head = table(0, 2000, 64)
    head[rows] += 0.5
    found = verdict(tmp_path, table(0, 2000, 64), head)
    assert not found.equal
    assert found.difference.rows_differing == len(rows)
    assert found.difference.rows == 2000
    assert found.difference.few_rows
    assert found.difference.largest == pytest.approx(0.5, rel=1e-3)


@pytest.mark.parametrize("small", [0, 1 << 30], ids=["two threads", "one thread"])
def test_difference_in_the_last_byte_of_a_large_table_is_found(tmp_path, monkeypatch, small):
    monkeypatch.setattr(equality, "_SMALL", small)
    head = table(0, 9000, 300)  # 10.8 MB: both threads have blocks
    head[-1, -1] = np.nextafter(head[-1, -1], np.float32(9))
    found = verdict(tmp_path, table(0, 9000, 300), head)
    assert not found.equal
    assert found.difference.rows_differing == 1


@pytest.mark.parametrize("small", [0, 1 << 30], ids=["two threads", "one thread"])
def test_large_twin_is_read_to_the_end(tmp_path, monkeypatch, small):
    monkeypatch.setattr(equality, "_SMALL", small)
    assert verdict(tmp_path, table(0, 9000, 300), table(0, 9000, 300)).equal


def test_negative_zero_is_the_same_number_as_zero(tmp_path):
    embed, head = table(), table()
    embed[3, 2], head[3, 2] = 0.0, -0.0
    assert verdict(tmp_path, embed, head).equal


def test_equal_up_to_rounding_is_a_twin_and_the_report_says_so(tmp_path):
    found = verdict(tmp_path, table(0, 500, 64), table(0, 500, 64).astype(np.float16))
    assert found.equal
    assert "up to rounding" in found.how
    assert "to F16" in found.how


def test_one_different_row_makes_two_types_unequal(tmp_path):
    embed = table(0, 200, 64)
    head = embed.astype(np.float16)
    head[150] = head[10]
    found = verdict(tmp_path, embed, head)
    assert not found.equal


def test_two_zero_rows_agree_and_a_zero_row_beside_another_does_not(tmp_path):
    embed = table(0, 50, 16)
    embed[7] = 0
    assert verdict(tmp_path, embed, embed.astype(np.float16)).equal
    head = embed.astype(np.float16)
    head[7] = 1
    assert not verdict(tmp_path, embed, head).equal


def test_extra_rows_are_counted(tmp_path):
    embed = table(0, 1000, 16)
    found = verdict(tmp_path, embed, embed[:990].copy())
    assert not found.equal
    assert found.difference.extra_rows == 10
    assert found.difference.rows_differing == 0
    assert "embed has 10 more rows" in found.how


def test_different_widths_are_different(tmp_path):
    assert "shapes differ" in verdict(tmp_path, table(0, 50, 16), table(0, 50, 8)).how


def test_infinities_and_nans_are_compared(tmp_path):
    embed, head = table(), table()
    embed[1, 1] = head[1, 1] = np.nan
    embed[2, 2] = np.inf
    found = verdict(tmp_path, embed, head)
    assert not found.equal
    assert found.difference.rows_differing == 1
    assert found.difference.largest == np.inf


@pytest.mark.parametrize("small", [0, 1 << 30], ids=["two threads", "one thread"])
def test_block_scan_agrees_with_the_obvious_comparison(tmp_path, monkeypatch, small):
    monkeypatch.setattr(equality, "BLOCK", 64)
    monkeypatch.setattr(equality, "_FIRST_BYTES", 16)
    monkeypatch.setattr(equality, "_SMALL", small)
    random = np.random.default_rng(7)
    for trial in range(60):
        embed = table(trial, 37, 5)
        head = embed.copy()
        for _ in range(random.integers(0, 3)):
            head[random.integers(37), random.integers(5)] += random.integers(0, 2)
        assert verdict(tmp_path, embed, head).equal == np.array_equal(embed, head)


@pytest.mark.parametrize("factor", [3.0, 1.02, -1.0])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_a_scaled_matrix_is_not_equal_in_any_dtype(tmp_path, factor, dtype):
    """A cosine of 1 is not equality."""
    found = verdict(tmp_path, table(0, 500, 64), (table(0, 500, 64) * factor).astype(dtype))
    assert not found.equal
    assert found.difference.rows_differing > 0


def test_one_changed_row_of_another_dtype_is_found(tmp_path):
    head = table(0, 3000, 64).astype(np.float16)
    head[1234, 5] += np.float16(0.25)
    assert not verdict(tmp_path, table(0, 3000, 64), head).equal


@pytest.mark.parametrize("pair", [("F32", "BF16"), ("F16", "BF16"), ("F32", "F16"), ("F64", "F32")])
def test_roundings_of_one_matrix_are_equal(tmp_path, pair):
    import torch
    from safetensors.torch import save_file as save_torch

    kinds = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
    values = torch.from_numpy(table(0, 2000, 64))
    save_torch({"embed": values.to(kinds[pair[0]]), "head": values.to(kinds[pair[1]])}, tmp_path / "m.safetensors")
    found = compare(open_checkpoint(tmp_path / "m.safetensors"), "embed", "head")
    assert found.equal
    assert "up to rounding" in found.how


@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_two_quantised_types_are_compared_by_direction_and_length(tmp_path, factor):
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    for name, kind, scale in (("token_embd.weight", "Q8_0", 1.0), ("output.weight", "Q5_0", factor)):
        kind = gguf.GGMLQuantizationType[kind]
        writer.add_tensor(name, gguf.quants.quantize(table(0, 200, 64) * np.float32(scale), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = compare(open_checkpoint(tmp_path / "m.gguf"), "token_embd.weight", "output.weight")
    assert found.equal == (factor == 1.0)
    assert ("3.00 x as long" in found.how) == (factor == 3.0)


def test_progress_counts_what_is_compared_and_can_end_it(tmp_path):
    told: list[tuple[int, int]] = []
    same = table(0, 20_000, 64)  # 5 MB: more than one block
    save_file({"embed": same, "head": same, "short": same[:-1].copy()}, tmp_path / "m.safetensors")
    checkpoint = open_checkpoint(tmp_path / "m.safetensors")
    assert compare(checkpoint, "embed", "head", lambda *now: told.append(now)).equal
    assert [done for done, _ in told] == sorted({done for done, _ in told})
    assert {total for _, total in told} == {same.nbytes}
    assert told[-1] == (same.nbytes, same.nbytes)
    told.clear()
    assert not compare(checkpoint, "embed", "short", lambda *now: told.append(now)).equal
    assert told[-1] == (19_999, 19_999)

    def stop(done: int, total: int) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        compare(checkpoint, "embed", "head", stop)


def slow_difference(e, w):
    """Row by row, number by number: (rows that differ, largest gap, median cosine)."""
    differing, largest, cosines = 0, 0.0, []
    for a, b in zip(e.astype(np.float64), w.astype(np.float64), strict=True):
        gaps = [0.0 if x == y or (np.isnan(x) and np.isnan(y)) else abs(x - y) for x, y in zip(a, b, strict=True)]
        gaps = [np.inf if np.isnan(gap) else gap for gap in gaps]
        differing += any(gaps)
        largest = max(largest, *gaps)
        norm = np.linalg.norm(a) * np.linalg.norm(b)
        cosine = a @ b / norm if norm > 0 else float(not a.any() and not b.any())
        cosines.append(0.0 if np.isnan(cosine) else cosine)
    return differing, largest, np.median(cosines)


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("rows", [1, 6, 7])
@pytest.mark.parametrize("special", [None, 0.0, np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("both", [False, True])
def test_difference_agrees_with_a_loop_over_the_numbers(tmp_path, rows, special, both):
    embed, head = table(0, rows, 5), table(1, rows, 5)
    head[:2] = embed[:2]
    if special is not None:
        embed[-1, :3] = special
        head[0 if not both else -1, :3] = special
        embed[rows // 2] = 0.0
    save_file({"embed": embed, "head": head}, tmp_path / "m.safetensors")
    checkpoint = open_checkpoint(tmp_path / "m.safetensors")
    E, W = (checkpoint.tensors[name] for name in ("embed", "head"))
    found = equality._measure(checkpoint, E, W, [range(rows)])
    assert found == (rows, *slow_difference(embed, head)[:2], pytest.approx(slow_difference(embed, head)[2]))


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_median_is_that_of_numpy(count):
    values = np.random.default_rng(count).standard_normal(count)
    assert equality._median(values) == np.median(values)
