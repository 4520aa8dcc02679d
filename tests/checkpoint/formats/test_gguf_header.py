"""GGUF: files of the real writer are read as by the real reader, and inconsistent ones are refused."""

from __future__ import annotations

import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFValueType as Value
from gguf.quants import _type_traits, dequantize, quantize
from hypothesis import given, settings
from hypothesis import strategies as st

import tiebeam
from helpers.handmade_gguf import ACCEPTED, REFUSED, array, by_hand, pair, tensor, text
from helpers.mangling import mangled, survives
from tiebeam.checkpoint import open_checkpoint
from tiebeam.checkpoint.files import LocalFiles
from tiebeam.checkpoint.formats.gguf import StoredArray, read_header
from tiebeam.errors import UnreadableInput

QUANTISED = [Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0, Kind.TQ1_0, Kind.TQ2_0, Kind.MXFP4]

PLAIN = {"F32": "<f4", "F16": "<f2", "F64": "<f8", "I8": "i1", "I16": "<i2", "I32": "<i4", "I64": "<i8"}


def numbers(rows: int = 6, columns: int = 512, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write(path: Path, tensors: dict[str, np.ndarray] | None = None, **values: Any) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in values.items():
        writer.add_key_value(key.replace("__", "."), *value)
    for name, value in (tensors or {"token_embd.weight": numbers()}).items():
        writer.add_tensor(name, value)
    finish(writer)
    return path


def refusal(source: Path) -> str:
    with pytest.raises(UnreadableInput) as caught:
        open_checkpoint(source)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Reading back


SCALARS: dict[str, Any] = {
    "u8": (200, Value.UINT8), "i8": (-100, Value.INT8), "u16": (60_000, Value.UINT16), "i16": (-30_000, Value.INT16),
    "u32": (4_000_000_000, Value.UINT32), "i32": (-2_000_000_000, Value.INT32), "u64": (1 << 63, Value.UINT64),
    "i64": (-(1 << 62), Value.INT64), "f32": (0.5, Value.FLOAT32), "f64": (0.1, Value.FLOAT64),
    "yes": (True, Value.BOOL), "no": (False, Value.BOOL), "text": ("ünïcode \n", Value.STRING),
    "none": ("", Value.STRING),
}  # fmt: skip
ARRAYS: dict[str, Any] = {
    "ints": ([1, -2, 3], Value.ARRAY, Value.INT32), "floats": ([0.5, 1.5], Value.ARRAY, Value.FLOAT32),
    "bytes": ([1, 2, 255], Value.ARRAY, Value.UINT8), "flags": ([True, False], Value.ARRAY, Value.BOOL),
    "words": (["a", "", "ß"], Value.ARRAY, Value.STRING), "wide": ([1 << 40], Value.ARRAY, Value.UINT64),
    "nested": ([[1, 2], [3]], Value.ARRAY, Value.ARRAY), "deep": ([[["x"], ["y", "z"]]], Value.ARRAY, Value.ARRAY),
    "many.words": ([f"token {i}" for i in range(3000)], Value.ARRAY, Value.STRING),
    "many.floats": ([i / 2 for i in range(3000)], Value.ARRAY, Value.FLOAT32),
}  # fmt: skip


def test_every_kind_of_value_reads_back(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", **SCALARS, **ARRAYS)
    metadata = open_checkpoint(path).metadata
    for key, (value, *_) in {**SCALARS, **ARRAYS}.items():
        got = metadata[key]
        if isinstance(value, list):
            assert list(got) == value, key
        else:
            assert type(got) is type(value), key
            assert got == value, key


def test_values_and_tensors_agree_with_the_real_reader(tmp_path: Path) -> None:
    plain = {key: value for key, value in ARRAYS.items() if key not in ("nested", "deep")}
    path = write(tmp_path / "m.gguf", {"a": numbers(), "b": numbers(3, 7), "c": numbers(1, 5)[0]}, **SCALARS, **plain)
    checkpoint, reader = open_checkpoint(path), gguf.GGUFReader(path)
    fields = {key: field for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert set(checkpoint.metadata) == set(fields)
    for key, field in fields.items():
        value = checkpoint.metadata[key]
        assert (list(value) if isinstance(value, list | StoredArray) else value) == field.contents(), key
    assert [
        (t.name, tuple(reversed(t.shape.tolist())), t.tensor_type.name, t.data_offset, t.data_offset + t.n_bytes)
        for t in reader.tensors
    ] == [(t.name, t.shape, t.dtype, t.begin, t.end) for t in checkpoint.tensors.values()]


@pytest.mark.parametrize("kind", QUANTISED, ids=lambda kind: kind.name)
def test_quantized_rows_equal_those_of_the_gguf_package(tmp_path: Path, kind: Kind) -> None:
    packed = quantize(numbers(), kind)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("first", numbers(3, 5))
    writer.add_tensor("token_embd.weight", packed, raw_dtype=kind)
    finish(writer)
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    info = checkpoint.tensors["token_embd.weight"]
    assert (info.shape, info.dtype, info.nbytes) == ((6, 512), kind.name, packed.nbytes)
    assert checkpoint.read_bytes(info.name) == packed.tobytes()
    expected = dequantize(packed, kind)
    np.testing.assert_array_equal(checkpoint.tensor(info.name), expected)
    for start, stop in ((0, 1), (2, 5), (5, 6), (3, 3)):
        np.testing.assert_array_equal(checkpoint.rows(info.name, start, stop), expected[start:stop])


@pytest.mark.parametrize(
    "kind", [kind for kind in Kind if kind.name in PLAIN or kind in _type_traits], ids=lambda k: k.name
)
def test_any_bytes_of_any_type_decode_as_in_the_gguf_package(tmp_path: Path, kind: Kind) -> None:
    block, size = gguf.GGML_QUANT_SIZES[kind]
    raw = np.random.default_rng(1).integers(0, 256, 4 * 2 * size, dtype=np.uint8)
    path = by_hand(tmp_path / "m.gguf", tensors=[tensor("x", (4, 2 * block), int(kind))], data=0)
    with path.open("ab") as file:
        file.write(raw.tobytes())
    checkpoint = open_checkpoint(path)
    got = checkpoint.tensor("x")
    assert got.shape == (4, 2 * block)
    if kind.name in ("F64", "I8", "I16", "I32", "I64"):
        expected = raw.view({"F64": "<f8", "I8": "i1", "I16": "<i2", "I32": "<i4", "I64": "<i8"}[kind.name]).reshape(
            4, 2
        )
    else:
        with np.errstate(all="ignore"):
            expected = dequantize(raw.reshape(4, -1), kind).reshape(4, 2 * block)
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(checkpoint.rows("x", 1, 3), expected[1:3])


def test_type_without_decoder_is_refused_when_rows_are_read(tmp_path: Path) -> None:
    path = by_hand(tmp_path / "m.gguf", tensors=[tensor("x", (1, 32), int(Kind.Q8_1))])
    checkpoint = open_checkpoint(path)
    with pytest.raises(UnreadableInput, match="gguf package cannot decode Q8_1"):
        checkpoint.tensor("x")


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20).filter(
            lambda key: key not in ("general.architecture", "general.alignment")
        ),
        st.one_of(
            st.text(st.characters(exclude_categories=["Cs"]), max_size=20).map(lambda v: (v, Value.STRING)),
            st.integers(0, 2**64 - 1).map(lambda v: (v, Value.UINT64)),
            st.booleans().map(lambda v: (v, Value.BOOL)),
            st.floats(width=32, allow_nan=False).map(lambda v: (v, Value.FLOAT32)),
            st.lists(st.integers(-128, 127), min_size=1, max_size=50).map(lambda v: (v, Value.ARRAY, Value.INT8)),
            st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), min_size=1, max_size=50).map(
                lambda v: (v, Value.ARRAY, Value.STRING)
            ),
        ),
        max_size=6,
    ),
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=15),
        st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from([8, 32, 256]),
)
@settings(max_examples=100, deadline=None)
def test_files_of_the_real_writer_are_read(
    tmp_path_factory: pytest.TempPathFactory, values: dict, shapes: dict, alignment: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "written.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(alignment)
    for key, value in values.items():
        writer.add_key_value(key, *value)
    content = {name: np.random.default_rng(0).standard_normal(shape, np.float32) for name, shape in shapes.items()}
    for name, written in content.items():
        writer.add_tensor(name, written)
    finish(writer)
    checkpoint = open_checkpoint(path)
    assert set(checkpoint.metadata) == {"general.architecture", "general.alignment", *values}
    for key, (value, *_) in values.items():
        got = checkpoint.metadata[key]
        assert (list(got) if isinstance(value, list) else got) == value
    assert set(checkpoint.tensors) == set(content)
    for name, written in content.items():
        np.testing.assert_array_equal(checkpoint.tensor(name), written)


def test_version_two_is_read(tmp_path: Path) -> None:
    assert open_checkpoint(by_hand(tmp_path / "m.gguf", version=2)).tensors["a"].shape == (2, 2)


def test_empty_and_scalar_tensors_are_read(tmp_path: Path) -> None:
    table = [tensor("none", (0, 32), int(Kind.Q8_0)), tensor("one", ()), tensor("a", offset=32)]
    checkpoint = open_checkpoint(by_hand(tmp_path / "m.gguf", tensors=table))
    assert checkpoint.tensor("none").shape == (0, 32)
    assert checkpoint.tensor("one").shape == ()
    assert checkpoint.tensor("a").shape == (2, 2)


def test_invalid_utf8_in_metadata_does_not_prevent_opening(tmp_path: Path) -> None:
    tokens = struct.pack("<IQ", 8, 2) + text(b"\xff") + text("ok")
    path = by_hand(tmp_path / "m.gguf", [pair("general.name", 8, text(b"\xe9t\xe9")), pair("tokens", 9, tokens)])
    metadata = open_checkpoint(path).metadata
    assert metadata["general.name"] == "\ufffdt\ufffd"
    assert list(metadata["tokens"]) == ["\ufffd", "ok"]


# Long arrays stay in the file


def test_long_array_is_read_on_demand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = [f"<{i}>" for i in range(100_000)]
    scores = [float(i) for i in range(100_000)]
    write(
        tmp_path / "m.gguf",
        tokens=(tokens, Value.ARRAY, Value.STRING),
        scores=(scores, Value.ARRAY, Value.FLOAT32),
        after=("here", Value.STRING),
    )
    reads: list[tuple[int, int]] = []
    read = LocalFiles.read

    def recorded(self: LocalFiles, name: str, begin: int, end: int) -> bytes:
        reads.append((begin, end))
        return read(self, name, begin, end)

    monkeypatch.setattr(LocalFiles, "read", recorded)
    header = read_header(LocalFiles(tmp_path), "m.gguf")
    assert header.metadata["after"] == "here"
    stored = header.metadata["tokens"]
    before = len(reads)
    assert len(stored) == 100_000
    assert "100,000 values" in repr(stored)
    assert len(reads) == before
    assert stored[7] == "<7>"
    assert stored[-2:] == tokens[-2:]
    assert list(stored) == tokens
    assert "<99999>" in stored
    assert len(reads) == before + 1
    assert list(header.metadata["scores"]) == scores


@pytest.mark.parametrize("window", [16, 64, 1 << 10])
def test_header_is_read_with_any_window_size(tmp_path: Path, window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiebeam.checkpoint.formats.gguf._FIRST_WINDOW", window)
    monkeypatch.setattr("tiebeam.checkpoint.formats.gguf._WINDOW", window)
    path = write(tmp_path / "m.gguf", {"a": numbers(), "b": numbers(2, 3)}, **SCALARS, **ARRAYS)
    metadata = open_checkpoint(path).metadata
    assert all(list(metadata[key]) == value for key, (value, *_) in ARRAYS.items())
    assert all(metadata[key] == value for key, (value, *_) in SCALARS.items())


# Split files


def split(where: Path, count: int = 3, **claims: Any) -> list[Path]:
    paths = []
    for i in range(count):
        path = where / f"m-{i + 1:05d}-of-{count:05d}.gguf"
        writer = gguf.GGUFWriter(path, "llama" if i == 0 else "")
        writer.add_uint16("split.no", claims.get("no", i))
        writer.add_uint16("split.count", claims.get("of", count))
        writer.add_int32("split.tensors.count", claims.get("tensors", count))
        if i == 0:
            writer.add_string("general.name", "whole")
        writer.add_tensor(f"t{i}", numbers(seed=i))
        finish(writer)
        paths.append(path)
    return paths


def test_split_model_opens_by_any_of_its_parts(tmp_path: Path) -> None:
    for source in (tmp_path, *split(tmp_path)):
        checkpoint = open_checkpoint(source)
        assert set(checkpoint.tensors) == {"t0", "t1", "t2"}
        assert checkpoint.architecture == "llama"
        assert checkpoint.metadata["general.name"] == "whole"
        assert checkpoint.metadata["split.no"] == 0
        np.testing.assert_array_equal(checkpoint.tensor("t2"), numbers(seed=2))


def test_split_without_all_its_parts_is_refused(tmp_path: Path) -> None:
    paths = split(tmp_path)
    paths[1].rename(tmp_path / "m-00002.gguf")
    assert "m-00002-of-00003.gguf is missing" in refusal(paths[0])


def test_part_under_another_name_is_refused(tmp_path: Path) -> None:
    split(tmp_path)[1].rename(tmp_path / "alone.gguf")
    assert "says that it is part 1 of 3, counted from 0" in refusal(tmp_path / "alone.gguf")


@pytest.mark.parametrize(
    ("claims", "message"),
    [
        ({"of": 4}, "says that it is part 0 of 4, counted from 0"),
        ({"no": 2}, "says that it is part 2 of 3, counted from 0"),
        ({"tensors": 5}, "should have 5 tensors but holds 3"),
    ],
)
def test_parts_that_disagree_are_refused(tmp_path: Path, claims: dict[str, int], message: str) -> None:
    split(tmp_path, **claims)
    assert message in refusal(tmp_path)


def test_split_metadata_of_another_type_is_refused(tmp_path: Path) -> None:
    assert "says that it is part" in refusal(
        write(tmp_path / "m.gguf", split__count=(["x"], Value.ARRAY, Value.STRING))
    )
    assert "says that it is part" in refusal(write(tmp_path / "m.gguf", split__no=("x", Value.STRING)))
    assert "should have 'x' tensors" in refusal(write(tmp_path / "m.gguf", split__tensors__count=("x", Value.STRING)))


def test_several_models_in_one_directory_are_distinguished(tmp_path: Path) -> None:
    write(tmp_path / "m.Q4.gguf")
    write(tmp_path / "m.Q8.gguf")
    assert f"holds 2 models (m.Q4.gguf, m.Q8.gguf); name one, as {tmp_path}/m.Q4.gguf" in refusal(tmp_path)
    (tmp_path / "m.Q4.gguf").rename(tmp_path / "mmproj-m.gguf")
    assert set(open_checkpoint(tmp_path).tensors) == {"token_embd.weight"}


def test_config_json_beside_a_gguf_file_is_ignored(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf")
    (tmp_path / "config.json").write_text("broken")
    assert open_checkpoint(tmp_path).config is None
    assert open_checkpoint(tmp_path / "m.gguf").config is None


# Refusing


@pytest.mark.parametrize("case", REFUSED)
def test_inconsistent_header_is_refused_with_bounded_memory(tmp_path: Path, case: str) -> None:
    claims, message = REFUSED[case]
    path = by_hand(tmp_path / "m.gguf", **claims)
    tracemalloc.start()
    try:
        assert message in refusal(path)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("case", ACCEPTED)
def test_unusual_but_valid_header_is_read(tmp_path: Path, case: str) -> None:
    checkpoint = open_checkpoint(by_hand(tmp_path / "m.gguf", **ACCEPTED[case]))
    for name, info in checkpoint.tensors.items():
        assert checkpoint.tensor(name).shape == info.shape


def test_block_of_q8_1_has_the_size_of_ggml_and_not_of_gguf_py(tmp_path: Path) -> None:
    assert gguf.GGML_QUANT_SIZES[Kind.Q8_1] == (32, 40)
    table = [tensor("a", (2, 32), int(Kind.Q8_1)), tensor("b", offset=96)]
    checkpoint = open_checkpoint(by_hand(tmp_path / "m.gguf", tensors=table, data=128))
    assert checkpoint.tensors["a"].nbytes == 2 * 36


@pytest.mark.parametrize("pairs", [[array(8, 1 << 24)], [array(8, 3) + text("")], [array(9, 1 << 24)]])
def test_sparse_terabyte_file_is_refused_quickly(tmp_path: Path, pairs: list[bytes]) -> None:
    path = by_hand(tmp_path / "m.gguf", pairs, counts=(1_000_000, 100_000))
    with path.open("r+b") as file:
        file.truncate(1 << 40)
    refusal(path)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", {"a": numbers(2, 8)}, words=(["a", "b"], Value.ARRAY, Value.STRING))
    raw = path.read_bytes()
    for length in range(len(raw)):
        path.write_bytes(raw[:length])
        refusal(path)


def test_damaged_files_end_in_a_result_or_in_one_sentence(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    for key, value in {**SCALARS, **{k: v for k, v in ARRAYS.items() if not k.startswith("many")}}.items():
        writer.add_key_value(key, *value)
    writer.add_tensor("a", numbers(2, 4))
    writer.add_tensor("b", quantize(numbers(2, 64), Kind.Q5_0), raw_dtype=Kind.Q5_0)
    finish(writer)
    raw = (tmp_path / "m.gguf").read_bytes()
    assert {survives(tmp_path / "m.gguf", broken) for broken in mangled(raw, 1800)} == {True, False}


def test_damaged_long_arrays_end_in_a_list_or_in_one_sentence(tmp_path: Path) -> None:
    words = ([f"w{i}" for i in range(1100)], Value.ARRAY, Value.STRING)
    path = write(tmp_path / "m.gguf", {"a": numbers(1, 4)}, words=words)
    raw = path.read_bytes()
    opened = 0
    for broken in mangled(raw, 300, seed=1):
        path.write_bytes(broken)
        try:
            metadata = open_checkpoint(path).metadata
        except UnreadableInput:
            continue
        for value in metadata.values():
            if isinstance(value, StoredArray):
                opened += 1
                assert len(list(value)) == len(value)
    assert opened


def test_missing_gguf_package_names_the_extra(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf")
    script = (
        "import sys; sys.modules['gguf'] = None\n"
        "from tiebeam.checkpoint import open_checkpoint\n"
        "from tiebeam.errors import MissingExtra\n"
        "try: open_checkpoint(sys.argv[1])\n"
        "except MissingExtra as error: print(error)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "m.gguf")],
        env={"PYTHONPATH": str(Path(tiebeam.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == "reading GGUF needs the extra [gguf]; install it with: pip install 'tiebeam[gguf]'"
