"""The cost table: its streamed sums equal the plain computation, and its recommendation keeps its promise."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from helpers.tiny_llama_gguf import TEXT, VOCAB, table, write_llama_gguf
from tiebeam.cli import tiebeam as command
from tiebeam.decode import Decoder, Table, divergence
from tiebeam.errors import BadRequest, UnreadableInput
from tiebeam.surgery.quantize import CostTable, measure_costs
from tiebeam.surgery.quantize.head_cost import Effect, HeadVariant, measure_heads
from tiebeam.surgery.quantize.precisions import PRECISIONS


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama_gguf(tmp_path_factory.mktemp("tied") / "m.gguf", "F16")


@pytest.fixture(scope="module")
def untied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama_gguf(tmp_path_factory.mktemp("untied") / "m.gguf", "F16", "F16", tables=(table(0), table(7)))


@pytest.fixture(scope="module")
def costs(tied: Path) -> CostTable:
    return measure_costs(tied, TEXT, tokens=256)


def test_streamed_sums_equal_whole_logits(untied: Path) -> None:
    engine = Decoder.open(untied)
    tokens = engine.encode(TEXT)[:200]
    rounded = engine.head.rows + np.random.default_rng(0).standard_normal(engine.head.rows.shape).astype(np.float32) / 9
    other = engine.with_tables(engine.embed, Table(rounded))
    expected = divergence(engine, other, tokens)
    states, targets = engine.hidden(tokens[:-1]), np.asarray(tokens[1:])
    effect = Effect(states)
    nats = measure_heads(engine, states, targets, [HeadVariant(lambda a, b: rounded[a:b], [effect])])
    assert nats.mean() == pytest.approx(expected.before.nats_per_token, abs=1e-5)
    assert effect.kl.mean() == pytest.approx(expected.kl, abs=1e-5)
    assert effect.same.mean() == pytest.approx(expected.agreement)
    change = expected.after.nats_per_token - expected.before.nats_per_token
    assert effect.nats.mean() == pytest.approx(change, abs=1e-5)


def test_every_precision_is_there_for_lookup_head_and_both(costs: CostTable) -> None:
    found = {(row.which, row.precision, row.rounding) for row in costs.rows}
    for precision in PRECISIONS:
        assert {
            ("lookup", precision, "nearest"),
            ("head", precision, "nearest"),
            ("both", precision, "nearest"),
        } <= found
        if precision.bits < 16:
            assert {("head", precision, "compensated"), ("both", precision, "compensated")} <= found
    assert len(found) == len(costs.rows)


def test_what_is_stored_already_costs_nothing_and_fewer_bits_cost_more(costs: CostTable) -> None:
    kl = {row.precision.name: row.kl for row in costs.rows if row.which == "head" and row.rounding == "nearest"}
    assert kl["f16"] < 1e-7
    assert kl["q8 block"] < kl["q6 block"] < kl["q5 block"] < kl["q4 block"] < kl["q3 block"]
    for row in costs.rows:
        assert row.low <= row.nats <= row.high


def test_a_lookup_alone_costs_what_running_the_model_with_it_costs(tied: Path, costs: CostTable) -> None:
    from tiebeam.surgery.joint.calibration import calibrate
    from tiebeam.surgery.quantize.precisions import Precision
    from tiebeam.surgery.quantize.rounding import round_nearest

    row = next(r for r in costs.rows if (r.which, r.precision.name, r.rounding) == ("lookup", "q3 block", "nearest"))
    engine = Decoder.open(tied)
    rounded = Table(round_nearest(np.asarray(engine.embed.rows), Precision(3, 32)).values())
    runs = calibrate(engine, TEXT, most=256, held_out_most=257).held_out
    kl, n = 0.0, 0
    for run in (runs[::2] + runs[1::2])[: max(1, len(runs) // 2)]:
        found = divergence(engine, engine.with_tables(rounded, engine.head), run)
        kl, n = kl + found.kl * (len(run) - 1), n + len(run) - 1
    assert n == costs.lookup_tokens
    assert row.kl == pytest.approx(kl / n, rel=1e-2)


def test_bytes_count_what_the_file_would_hold(costs: CostTable) -> None:
    matrix = VOCAB * 64
    size = {(r.which, r.precision.name): r.bytes for r in costs.rows}
    assert costs.bytes == 2 * matrix
    assert size["both", "q4 block"] == matrix // 32 * 18, "one matrix serves both ends of a tied model"
    assert size["head", "q4 block"] == size["lookup", "q4 block"] == 2 * matrix + matrix // 32 * 18


def test_an_untied_model_has_two_of_each_and_may_mix(untied: Path) -> None:
    costs = measure_costs(untied, TEXT, tokens=256, tolerance=5.0)
    size = {(r.which, r.precision.name): r.bytes for r in costs.rows if r.embed is None or r.head in (None, r.embed)}
    assert size["both", "q5 row"] == 2 * VOCAB * (40 + 2)
    mixed = [r for r in costs.rows if r.which == "both" and r.embed != r.head]
    assert all(r.writable for r in mixed)


def test_the_recommendation_is_the_smallest_whose_interval_is_below_the_tolerance(costs: CostTable) -> None:
    best = costs.recommended
    assert best is not None
    assert best.high < costs.tolerance
    assert not [r for r in costs.rows if r.bytes < best.bytes and r.high < costs.tolerance]
    assert CostTable.to_dict(costs)["recommended"]["bytes"] == best.bytes


def test_nothing_is_recommended_where_all_cost_too_much(tied: Path) -> None:
    costs = measure_costs(tied, TEXT, tokens=256, tolerance=1e-12)
    assert costs.recommended is None or costs.recommended.high < 1e-12


def test_the_printed_command_writes_the_recommendation(tied: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    model = tmp_path / "m.gguf"
    model.write_bytes(tied.read_bytes())
    arguments = ["quantize", str(model), "--text", str(tmp_path / "text.txt"), "--tokens", "256", "--tolerance", "0.05"]
    shown = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert shown.exit_code == 0
    for words in ("lookup alone", "head alone", "both", "95%", "±", "KL", "same", "smallest below the tolerance"):
        assert words in shown.output
    lines = [line.strip() for line in shown.output.splitlines() if line.strip().startswith("tiebeam quantize")]
    assert len(lines) == 1
    document = json.loads(CliRunner().invoke(command, [*arguments, "--json"], catch_exceptions=False).stdout)
    assert document["commands"] == lines
    written = CliRunner().invoke(command, [*shlex.split(lines[0])[1:], "--json", "--quiet"], catch_exceptions=False)
    assert written.exit_code == 0
    outcome = json.loads(written.stdout)
    wanted = document["recommended_gguf"]
    for side in ("embed", "head"):
        assert wanted[side] is None or outcome["types"][side] == wanted[side]["gguf"]


@pytest.mark.parametrize(
    ("more", "message"),
    [([], "--text FILE is missing"), (["--embed", "Q8_0"], "name DST"), (["--tokens", "3"], "256")],
)
def test_wrong_use_is_one_sentence(tied: Path, more: list[str], message: str) -> None:
    result = CliRunner().invoke(command, ["quantize", str(tied), *more])
    assert result.exit_code == 2
    assert message in result.output


def test_too_little_text_and_no_model_are_refused(tied: Path, tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="too few"):
        measure_costs(tied, "short")
    (tmp_path / "junk.gguf").write_bytes(b"GGUF" + bytes(40))
    with pytest.raises(UnreadableInput):
        measure_costs(tmp_path / "junk.gguf", TEXT)
