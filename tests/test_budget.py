"""Parameters and bytes of the pair, exactly, and how numbers are parsed and written."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiebeam
from tiebeam.budget import LARGEST_COUNT, Memory, human, human_bytes, parse_bytes, parse_count, percent, price
from tiebeam.errors import BadRequest

counts = st.integers(0, LARGEST_COUNT)
sizes = st.integers(1, 10**7)


def test_phi_4_mini():
    budget = price(200064, 3072, 3_221_425_152)
    assert budget.matrix == budget.saved == 614_596_608
    assert budget.tied_total == 3_836_021_760


def test_gpt_3_matrix():
    assert price(50257, 12288).matrix == 617_558_016


def test_tinyllama_saves_one_matrix():
    budget = price(32000, 2048, 968_976_384)
    assert (budget.untied_total, budget.tied_total, budget.saved) == (1_100_048_384, 1_034_512_384, 65_536_000)


def test_gpt_2_small():
    budget = price(50257, 768, 85_842_432)
    assert (budget.saved, budget.tied_total) == (38_597_376, 124_439_808)


def test_fifty_thousand_by_four_thousand_in_models_of_usual_sizes():
    pair = price(50_000, 4096)
    assert (human(pair.tied_table.params), human(pair.untied_table.params)) == ("204.8M", "409.6M")
    shares = {}
    for size in ("1B", "7B", "70B"):
        share = pair.within(parse_count(size)).head_share
        assert share is not None
        shares[size] = percent(share)
    assert shares == {"1B": "20.5%", "7B": "2.9%", "70B": "0.3%"}


def test_without_non_embedding_parameters_there_are_no_totals():
    budget = price(50_000, 4096)
    assert budget.trunk is budget.tied_total is budget.untied_total is budget.head_share is None


def test_a_pair_does_not_fit_into_a_model_smaller_than_itself():
    assert price(256_000, 16_384).within(10**9) is None
    assert price(500, 1000).within(10**6).trunk == 0


@given(sizes, sizes, counts)
def test_untied_is_tied_and_one_matrix(vocab, dim, trunk):
    budget = price(vocab, dim, trunk)
    assert budget.tied_total + budget.matrix == budget.untied_total == trunk + 2 * vocab * dim
    assert 0 < budget.head_share <= 0.5
    assert budget.within(budget.untied_total) == budget


def test_bytes_by_dtype_and_in_training():
    assert Memory(1000).to_dict() == {
        "params": 1000, "fp32": 4000, "bf16": 2000, "int8": 1000,
        "gradient": 4000, "master": 4000, "adam": 8000, "muon": 4000,
    }  # fmt: skip
    budget = price(100, 10)
    assert (budget.tied_table, budget.untied_table) == (Memory(1000), Memory(2000))


def test_to_dict_prices_one_matrix():
    assert price(100, 10, 3000).to_dict() == {
        "vocab": 100, "dim": 10, "trunk": 3000, "matrix": 1000, "tied_total": 4000, "untied_total": 5000,
        "saved": 1000, "head_share": 0.2, "bytes": {"fp32": 4000, "bf16": 2000, "int8": 1000}, "optimizer_bytes": 8000,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ((0, 1), "vocab must be at least 1, not 0"),
        ((1, 0), "dim must be at least 1, not 0"),
        ((1, 1, -1), "trunk must be at least 0, not -1"),
        (("a", 1), r"vocab must be an integer, not 'a' \(str\)"),
        ((1, 2.5), r"dim must be an integer, not 2\.5 \(float\)"),
    ],
)
def test_impossible_sizes_are_rejected_in_a_sentence(arguments, names):
    with pytest.raises(BadRequest, match=names):
        price(*arguments)


def test_public_names():
    assert tiebeam.price is price
    assert isinstance(tiebeam.price(1, 1), tiebeam.Budget)


def test_numpy_integers_are_accepted():
    sizes: Any = (np.int64(100), np.int32(10))
    budget = price(*sizes)
    assert budget.matrix == 1000
    assert type(budget.vocab) is int


def test_str_starts_with_the_verdict_and_uses_plain_terms():
    first, *rest = str(price(50257, 768, 85_842_432)).splitlines()
    assert first == "Tying saves 38.6M parameters, 23.7% of the untied model (50,257 x 768 each)"
    assert rest[1].split() == ["non-embedding", "85.8M", "85.8M"]
    assert str(price(10, 10)).startswith("Tying saves 100 parameters (10 x 10 each)")


def test_html_has_the_same_rows_as_the_text():
    budget = price(50257, 768, 85_842_432)
    html = budget._repr_html_()
    assert all(f">{cell}<" in html for row in budget.rows() for cell in row if cell)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("50257", 50257),
        ("50,257", 50257),
        ("1_000", 1000),
        ("50k", 50_000),
        ("50K", 50_000),
        ("135M", 135_000_000),
        ("3.2B", 3_200_000_000),
        ("3.2b", 3_200_000_000),
        (" 1.5 T ", 1_500_000_000_000),
        ("1e9", 10**9),
        ("2.5E+3", 2500),
        ("8.03B", 8_030_000_000),
        ("1.100048384B", 1_100_048_384),
        ("0.29B", 290_000_000),  # 0.29 * 1e9 is 290000000.00000006 or so in floats
        ("1,100,048,384", 1_100_048_384),
        ("32.0", 32),
        ("0", 0),
    ],
)
def test_counts_as_people_write_them(text, count):
    assert parse_count(text) == count


@pytest.mark.parametrize(
    "text",
    ["", "k", "-5", "3,2B", "5,25,7", ",500", "1__0", "_1", "1.", ".5B", "1e", "1e-3", "1e9M", "0x10", "٣", "3 2", "7G",
     "1B B", "NaN", "inf", "9" * 41],
)  # fmt: skip
def test_malformed_counts_are_rejected_in_one_sentence(text):
    with pytest.raises(BadRequest, match="is not a count; write it like") as refused:
        parse_count(text)
    assert "\n" not in str(refused.value)


def test_fractional_counts_are_rejected():
    with pytest.raises(BadRequest, match=r"'3\.2' is not a whole number; did you mean 3\.2B or 3\.2M\?"):
        parse_count("3.2")
    with pytest.raises(BadRequest, match="not a whole number"):
        parse_count("1.2345k")


@pytest.mark.parametrize("text", ["1e99", "9999999999999T", "9" * 40])
def test_absurdly_large_counts_are_rejected(text):
    with pytest.raises(BadRequest, match="quintillion"):
        parse_count(text)


@given(st.integers(0, LARGEST_COUNT // 10**9))
def test_every_exact_notation_parses_back(count):
    assert [parse_count(text) for text in (str(count), f"{count:,}", f"{count:_}")] == [count] * 3
    assert [parse_count(f"{count}{unit}") for unit in "kMB"] == [count * 10**power for power in (3, 6, 9)]
    assert parse_count(f"{count // 1000}.{count % 1000:03d}B") == count * 10**6


@given(st.integers(0, 10**15))
def test_short_form_parses_back_to_its_last_digit(count):
    step = 1 if count < 10_000 else 10 ** (2 if count < 10**6 else 5 if count < 10**9 else 7 if count < 10**12 else 10)
    assert abs(parse_count(human(count)) - count) <= step


@given(st.integers(0, 10**15))
def test_the_short_form_is_short(count):
    digits = human(count).split(".")[0]
    assert len(digits.replace(",", "")) <= 4


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (9999, "9,999"),
        (10_000, "10.0k"),
        (50_257, "50.3k"),
        (999_949, "999.9k"),
        (999_950, "1.0M"),
        (28_311_552, "28.3M"),
        (614_596_608, "614.6M"),
        (999_949_999, "999.9M"),
        (999_950_000, "1.00B"),
        (3_836_021_760, "3.84B"),
        (405_853_388_800, "405.85B"),
        (10**16, "10,000.00T"),
    ],
)
def test_the_short_form(count, text):
    assert human(count) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (9_949, "9.9 kB"),
        (9_950, "10 kB"),
        (999_499, "999 kB"),
        (999_500, "1.0 MB"),
        (30_081_024, "30 MB"),
        (98_000_000, "98 MB"),
        (999_500_000, "1.0 GB"),
        (1_229_193_216, "1.2 GB"),
        (15_344_087_040, "15.3 GB"),
        (999_950_000_000, "1.0 TB"),
        (2_000_000_000_000_000, "2,000.0 TB"),
    ],
)
def test_bytes_in_decimal_units(count, text):
    assert human_bytes(count) == text


@pytest.mark.parametrize(
    ("share", "text"), [(0, "0.0%"), (0.0004, "<0.1%"), (0.0005, "0.1%"), (0.2048, "20.5%"), (0.5, "50.0%")]
)
def test_shares(share, text):
    assert percent(share) == text


@pytest.mark.parametrize(
    ("text", "count"),
    [("16MB", 16_000_000), ("16 mb", 16_000_000), ("1.5kB", 1500), ("2GB", 2 * 10**9), ("16,000,000", 16_000_000),
     ("576 B", 576), ("16_000", 16_000)],
)  # fmt: skip
def test_sizes_are_parsed_with_decimal_units(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "MB", "lots", "-1MB", "16MiB", "1.5"])
def test_text_that_is_not_a_size_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="is not a size"):
        parse_bytes(text)
