"""`quantize` with DST: other types for both ends, the rest byte for byte; a twin under two types becomes one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from click.testing import CliRunner

from helpers import peer_programs
from helpers.tiny_llama_gguf import TEXT, numbers, stored, table, write_llama_gguf
from tiebeam.checkpoint import open_checkpoint
from tiebeam.cli import tiebeam as command
from tiebeam.decode import Decoder, Table
from tiebeam.errors import BadRequest
from tiebeam.inspection import inspect
from tiebeam.surgery.quantize import open_gguf, plan_quantize, quantize
from tiebeam.surgery.quantize.same_matrix import same_up_to_rounding

EMBED, HEAD = "token_embd.weight", "output.weight"


def rest(path: Path) -> dict[str, tuple[str, bytes]]:
    return {name: value for name, value in stored(path).items() if name not in (EMBED, HEAD)}


def as_type(values: np.ndarray, dtype: str) -> np.ndarray:
    kind = gguf.GGMLQuantizationType[dtype]
    return np.asarray(gguf.quants.dequantize(gguf.quants.quantize(values, kind), kind), np.float32)


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16", "Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0"])
def test_one_type_for_both_keeps_a_tied_file_tied(dtype: str, tmp_path: Path) -> None:
    source = write_llama_gguf(tmp_path / "m.gguf", "F32")
    outcome = quantize(source, tmp_path / "q.gguf", embed=dtype, head=dtype) if dtype != "F32" else None
    if outcome is None:
        with pytest.raises(BadRequest, match="already has these types"):
            quantize(source, tmp_path / "q.gguf", embed=dtype, head=dtype)
        return
    assert outcome.proof is not None
    assert (outcome.proof.ran, outcome.proof.largest) == (True, 0.0)
    assert HEAD not in stored(tmp_path / "q.gguf")
    assert rest(tmp_path / "q.gguf") == rest(source)
    expected = as_type(table(0), dtype)
    np.testing.assert_array_equal(numbers(tmp_path / "q.gguf", EMBED), expected)
    engine = Decoder.open(source)
    both = Table(expected)
    predicted = engine.with_tables(both, both).logits([1, 5, 9])
    np.testing.assert_array_equal(Decoder.open(tmp_path / "q.gguf").logits([1, 5, 9]), predicted)


@pytest.mark.parametrize(
    ("asked", "types"),
    [
        ({"embed": "Q4_0", "head": "Q8_0"}, ("Q4_0", "Q8_0")),
        ({"embed": "Q4_0"}, ("Q4_0", "F16")),
        ({"head": "q8_0"}, ("F16", "Q8_0")),
    ],
)
def test_two_types_untie_the_file(asked: dict[str, Any], types: tuple[str, str], tmp_path: Path) -> None:
    source = write_llama_gguf(tmp_path / "m.gguf", "F16")
    outcome = quantize(source, tmp_path / "q.gguf", **asked)
    assert outcome.proof is not None
    assert outcome.proof.largest == 0.0
    found = stored(tmp_path / "q.gguf")
    assert (found[EMBED][0], found[HEAD][0]) == types
    assert rest(tmp_path / "q.gguf") == rest(source)
    one = numbers(source, EMBED)
    for name, dtype in zip((EMBED, HEAD), types, strict=True):
        np.testing.assert_array_equal(numbers(tmp_path / "q.gguf", name), as_type(one, dtype))


def test_each_end_of_an_untied_model_gets_its_type(tmp_path: Path) -> None:
    source = write_llama_gguf(tmp_path / "m.gguf", "F16", "F16", tables=(table(0), table(3)))
    quantize(source, tmp_path / "q.gguf", head="Q5_0")
    found = stored(tmp_path / "q.gguf")
    assert found[EMBED] == stored(source)[EMBED]
    np.testing.assert_array_equal(numbers(tmp_path / "q.gguf", HEAD), as_type(numbers(source, HEAD), "Q5_0"))


@pytest.mark.parametrize(("embed", "head", "kept"), [("Q5_0", "Q8_0", "Q8_0"), ("F16", "Q4_0", "F16"),
                                                     ("Q8_0", "Q8_0", "Q8_0"), ("BF16", "F16", "F16")])  # fmt: skip
def test_a_twin_under_two_types_becomes_the_finer_one(embed: str, head: str, kept: str, tmp_path: Path) -> None:
    source = write_llama_gguf(tmp_path / "m.gguf", embed, head)
    planned = plan_quantize(open_gguf(source))
    assert planned.lossless
    quantize(source, tmp_path / "q.gguf")
    found = stored(tmp_path / "q.gguf")
    assert HEAD not in found
    assert found[EMBED] == stored(source)[EMBED if embed == kept else HEAD]
    assert inspect(tmp_path / "q.gguf").tied


def test_a_twin_gets_one_type_from_its_finer_copy(tmp_path: Path) -> None:
    source = write_llama_gguf(tmp_path / "m.gguf", "Q4_0", "Q8_0")
    quantize(source, tmp_path / "q.gguf", embed="Q5_0", head="Q5_0")
    np.testing.assert_array_equal(numbers(tmp_path / "q.gguf", EMBED), as_type(numbers(source, HEAD), "Q5_0"))


@pytest.mark.parametrize("change", ["one row", "all rows a little", "a factor"])
def test_matrices_that_differ_by_more_than_rounding_are_not_one(change: str, tmp_path: Path) -> None:
    other = table(0).copy()
    if change == "one row":
        other[100] += np.float32(0.2) * table(9)[100]
    elif change == "all rows a little":
        other += np.float32(0.07) * table(9)
    else:
        other *= np.float32(1.08)
    source = write_llama_gguf(tmp_path / "m.gguf", "Q5_0", "Q8_0", tables=(table(0), other))
    checkpoint = open_checkpoint(source)
    found = same_up_to_rounding(checkpoint, inspect(checkpoint).pair)
    assert found is None or not found.same
    with pytest.raises(BadRequest, match="does not store one matrix twice"):
        quantize(source, tmp_path / "q.gguf")


def test_an_architecture_that_needs_output_keeps_both(tmp_path: Path) -> None:
    source = write_llama_gguf(tmp_path / "m.gguf", "Q5_0", "Q8_0", architecture="olmo2")
    with pytest.raises(BadRequest, match=r"does not load olmo2 without output\.weight"):
        plan_quantize(open_gguf(source))
    planned = plan_quantize(open_gguf(source), embed="Q8_0", head="Q8_0")
    assert not planned.one


def test_an_architecture_that_refuses_output_is_not_untied(tmp_path: Path) -> None:
    source = write_llama_gguf(tmp_path / "m.gguf", "F16", architecture="gemma2")
    with pytest.raises(BadRequest, match="cannot be untied"):
        plan_quantize(open_gguf(source), head="Q8_0")
    assert plan_quantize(open_gguf(source), embed="Q8_0", head="Q8_0").one


def test_compensated_rounding_keeps_the_logits_closer(tmp_path: Path) -> None:
    source = write_llama_gguf(tmp_path / "m.gguf", "F16", "F16", tables=(table(0), table(3)))
    tokens = Decoder.open(source).encode(TEXT)[:400]
    before = Decoder.open(source).logits(tokens)
    error = {}
    for rounding in ("nearest", "compensated"):
        target = tmp_path / f"{rounding}.gguf"
        outcome = quantize(source, target, head="Q4_0", rounding=rounding, text=TEXT)
        assert outcome.proof is not None
        assert outcome.proof.largest == 0.0
        error[rounding] = float(((Decoder.open(target).logits(tokens) - before) ** 2).mean())
    assert error["compensated"] < 0.8 * error["nearest"]


@pytest.mark.parametrize(
    ("stored_type", "asked", "lossless"),
    [("F16", "F32", True), ("F32", "F16", True), ("Q4_0", "Q8_0", True), ("Q8_0", "F16", True), ("F16", "Q8_0", False),
     ("Q8_0", "Q5_0", False), ("F32", "BF16", False)],
)  # fmt: skip
def test_consent_is_needed_for_what_rounding_does_not_explain(
    stored_type: str, asked: str, lossless: bool, tmp_path: Path
) -> None:
    source = write_llama_gguf(tmp_path / "m.gguf", stored_type)
    assert plan_quantize(open_gguf(source), embed=asked, head=asked).lossless is lossless
    arguments = ["quantize", str(source), str(tmp_path / "q.gguf"), "--embed", asked, "--head", asked, "--quiet"]
    result = CliRunner().invoke(command, arguments)
    if lossless:
        assert result.exit_code == 0, result.output
        return
    assert not (tmp_path / "q.gguf").exists()
    assert isinstance(result.exception, BadRequest)
    assert "nats per token" in str(result.exception)
    assert "--yes" in str(result.exception)
    result = CliRunner().invoke(command, [*arguments, "--yes"], catch_exceptions=False)
    assert result.exit_code == 0
    assert "nats per token" in result.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"head": "Q6_K"}, "cannot be written by the gguf package; choose one of F32, F16"),
        ({"head": "Q9"}, "is not a GGUF type"),
        ({"head": "Q8_0", "rounding": "up"}, "rounding must be"),
        ({"head": "Q4_1", "rounding": "compensated", "text": TEXT}, "cannot be error-compensated"),
        ({"head": "Q4_0", "rounding": "compensated"}, "needs text"),
    ],
)
def test_what_cannot_be_done_is_said(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    source = write_llama_gguf(tmp_path / "m.gguf", "F16")
    with pytest.raises(BadRequest, match=message):
        quantize(source, tmp_path / "q.gguf", **options)
    assert not (tmp_path / "q.gguf").exists()


def test_other_formats_are_sent_to_the_converter(tmp_path: Path) -> None:
    from tiebeam.doctor.examples import EMBED as NAME
    from tiebeam.doctor.examples import matrix, write_llama

    write_llama(tmp_path / "hf", {NAME: matrix(0)}, tie_word_embeddings=True)
    with pytest.raises(BadRequest, match=r"convert_hf_to_gguf\.py"):
        quantize(tmp_path / "hf", tmp_path / "q.gguf", head="Q8_0")
    source = write_llama_gguf(tmp_path / "m.gguf", "F16")
    with pytest.raises(BadRequest, match=r"must end in \.gguf"):
        quantize(source, tmp_path / "directory", head="Q8_0")


def test_types_that_are_there_already_are_nothing_to_do(tmp_path: Path) -> None:
    source = write_llama_gguf(tmp_path / "m.gguf", "F16")
    result = CliRunner().invoke(command, ["quantize", str(source), str(tmp_path / "q.gguf"), "--head", "F16"])
    assert result.exit_code == 0
    assert "already has these types" in result.output
    assert not (tmp_path / "q.gguf").exists()


def test_a_dry_run_writes_nothing_and_names_the_types(tmp_path: Path) -> None:
    source = write_llama_gguf(tmp_path / "m.gguf", "F16")
    result = CliRunner().invoke(
        command, ["quantize", str(source), "--dry-run", "--embed", "Q8_0", "--head", "Q8_0"], catch_exceptions=False
    )
    assert "token_embd.weight F16 -> Q8_0" in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]


@pytest.mark.slow
def test_llama_cpp_loads_what_was_written(tmp_path: Path) -> None:
    source = write_llama_gguf(tmp_path / "m.gguf", "F16")
    quantize(source, tmp_path / "one.gguf", embed="Q8_0", head="Q8_0")
    quantize(source, tmp_path / "two.gguf", embed="Q4_0", head="Q5_0", rounding="compensated", text=TEXT)
    found = peer_programs.llama_cpp_loads([tmp_path / name for name in ("m.gguf", "one.gguf", "two.gguf")])
    assert found == ["loads"] * 3
