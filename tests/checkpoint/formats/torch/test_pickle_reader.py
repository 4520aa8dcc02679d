"""Pickles are read as data: nothing is imported or called, and every cost is bounded."""

from __future__ import annotations

import argparse
import collections
import contextlib
import math
import pickle
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.mangling import mangled, one_sentence
from tiebeam.checkpoint.formats.torch.pickle_reader import Global, PickledObject, TruncatedPickle, read_pickle
from tiebeam.errors import TiebeamError, UnreadableInput


def read(raw: bytes) -> Any:
    value, end = read_pickle(raw, "it", {}, lambda identity: None)
    assert end == len(raw)
    return value


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@settings(max_examples=150, deadline=None)
@given(value=plain, protocol=st.integers(0, 5))
def test_plain_values_equal_those_of_pickle(value: Any, protocol: int) -> None:
    assert read(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize("protocol", range(6))
def test_repeated_and_circular_values_keep_their_identity(protocol: int) -> None:
    inner: list[Any] = [1]
    outer: dict[str, Any] = {"a": inner, "b": inner}
    outer["self"] = outer
    got = read(pickle.dumps(outer, protocol))
    assert got["a"] is got["b"]
    assert got["self"] is got


class Canary:
    """Its pickle runs a command when loaded."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, ...]:
        import os

        return os.system, (self.command,)


@pytest.mark.parametrize("protocol", range(6))
def test_command_is_not_run(tmp_path: Path, protocol: int) -> None:
    canary = tmp_path / "canary"
    value = read(pickle.dumps({"x": Canary(f"touch {canary}")}, protocol))["x"]
    assert type(value) is PickledObject
    assert value.kind is not None
    assert value.kind.name == "system"
    assert not canary.exists()


@pytest.mark.parametrize(
    "program",
    [
        b"cos\nsystem\n(S'touch CANARY'\ntR.",
        b"cposix\nsystem\n(X\x0c\x00\x00\x00touch CANARY\x85R.",
        b"(S'touch CANARY'\nios\nsystem\n.",
        b"(cos\nsystem\nS'touch CANARY'\no.",
        b"\x80\x02cos\nsystem\nS'touch CANARY'\n\x85\x81.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x0ctouch CANARY\x85R.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x0ctouch CANARY\x85}\x92.",
        b'cbuiltins\nexec\n(S\'open("CANARY", "w")\'\ntR.',
        b"cbuiltins\ngetattr\n(cos\nsystem\nS'__call__'\ntR(S'touch CANARY'\ntR.",
        b"cbuiltins\nobject\n)\x81}S'__setstate__'\ncos\nsystem\nsbS'touch CANARY'\nb.",
        b"cos\nsystem\n}S'a'\nS'touch CANARY'\nsb.",
        b"cbuiltins\neval\n(cbuiltins\ncompile\n(S'open(\"CANARY\",\"w\")'\nS''\nS'eval'\ntRtR.",
    ],
)
def test_no_instruction_calls_imports_or_sets_state(
    program: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with contextlib.suppress(UnreadableInput):
        read(program)
    assert list(tmp_path.iterdir()) == []


def test_module_in_a_pickle_is_not_imported() -> None:
    import sys

    assert "antigravity" not in sys.modules
    assert read(b"cantigravity\nfly\n.") == Global("antigravity", "fly")
    assert "antigravity" not in sys.modules


def test_only_builders_in_the_table_are_called() -> None:
    def build(arguments: tuple[object, ...]) -> object:
        return ["built", *arguments] if arguments else None

    raw = pickle.dumps([collections.Counter(), collections.OrderedDict(a=1)], 2)
    value, _ = read_pickle(raw, "it", {Global("collections", "OrderedDict"): lambda arguments: {}}, lambda i: None)
    assert type(value[0]) is PickledObject
    assert value[1] == {"a": 1}
    value, _ = read_pickle(b"ca\nb\n)R.", "it", {Global("a", "b"): build}, lambda i: None)
    assert type(value) is PickledObject  # the builder made nothing of it
    value, _ = read_pickle(b"ca\nb\nK\x01\x85R.", "it", {Global("a", "b"): build}, lambda i: None)
    assert value == ["built", 1]


def test_object_keeps_its_class_its_state_and_its_items() -> None:
    value = read(pickle.dumps(argparse.Namespace(lr=0.1), 4))
    assert value.kind == Global("argparse", "Namespace")
    assert value.state == {"lr": 0.1}
    value = read(pickle.dumps(collections.defaultdict(list, a=1), 2))
    assert value.items == {"a": 1}


def test_dictionary_keeps_only_short_string_keys() -> None:
    value = read(pickle.dumps({"a": 1, 2: 3, (4, 5): 6, None: 7, math.pi: 8, b"9": 10}, 4))
    assert value == {"a": 1}


@pytest.mark.parametrize("raw", [b"}]Ns.", b"(}Nd."])
def test_unhashable_keys_are_refused(raw: bytes) -> None:
    with pytest.raises(TypeError):
        pickle.loads(raw)
    with pytest.raises(UnreadableInput, match="its pickle is invalid"):
        read(raw)


@pytest.mark.parametrize("raw", [b"K\x01(\x85.", b"K\x01(K\x02\x86.", b"}(K\x01K\x02s.", b"N(2.", b"N(q\x00."])
def test_no_instruction_reaches_below_a_mark(raw: bytes) -> None:
    with pytest.raises((pickle.UnpicklingError, IndexError)):
        pickle.loads(raw)
    with pytest.raises(UnreadableInput):
        read(raw)


def test_name_that_is_not_utf8_is_escaped_and_stays_distinct() -> None:
    value = read(b"(U\x02\xff\xfeK\x01X\x03\x00\x00\x00\xed\xa0\x80K\x02d.")
    assert len(value) == 2
    "".join(value).encode()


def test_persistent_ids_are_passed_to_their_builder() -> None:
    value, _ = read_pickle(b"(K\x01K\x02tQ.", "it", {}, lambda identity: ["stored", *identity])
    assert value == ["stored", 1, 2]
    assert type(read(b"K\x01Q.")) is PickledObject
    assert type(read(b"P12\n.")) is PickledObject


def test_consecutive_pickles_are_read_one_by_one() -> None:
    raw = pickle.dumps("one", 2) + pickle.dumps(["two"], 4)
    first, at = read_pickle(raw, "it", {}, lambda i: None)
    second, end = read_pickle(raw, "it", {}, lambda i: None, at)
    assert (first, second, end) == ("one", ["two"], len(raw))


@pytest.mark.parametrize("protocol", range(6))
def test_every_truncation_is_reported_as_truncation(protocol: int) -> None:
    raw = pickle.dumps({"a": [1, 2**70, 0.5, "text", b"bytes", (None, True)], "b": argparse.Namespace(x=1)}, protocol)
    for length in range(len(raw)):
        with pytest.raises(TruncatedPickle):
            read_pickle(raw[:length], "it", {}, lambda i: None)


@pytest.mark.parametrize(
    "program",
    [
        b".", b"s.", b"u.", b"a.", b"R.", b"b.", b"t.", b"h\x00.", b"g7\n.", b"\x80\x09.", b"\xfe.", b"Iabc\n.",
        b"(N}\x81u.", b"NN\x93.", b"L" + b"9" * 900 + b"x\n.", b"F1.2.3\n.", b"(NNNd.", b"(o.", b"p1\n.",
    ],
)  # fmt: skip
def test_invalid_pickle_is_refused_in_one_sentence(program: bytes) -> None:
    with pytest.raises(UnreadableInput, match="its pickle"):
        read(program)


def test_lengths_beyond_the_bytes_are_not_allocated() -> None:
    for program in (
        b"\x8e" + b"\xff" * 8,
        b"\x96" + b"\xff" * 7 + b"\x7f",
        b"X\xff\xff\xff\xff",
        b"\x8b\xff\xff\xff\x7f",
    ):
        with pytest.raises(TruncatedPickle):
            read(program + b".")


def test_huge_memo_index_costs_nothing() -> None:
    assert read(b"K\x07r\xff\xff\xff\xff0j\xff\xff\xff\xff.") == 7


def test_too_many_instructions_are_refused() -> None:
    with pytest.raises(UnreadableInput, match="more instructions than the limit of 10,000; refusing to read"):
        read_pickle(b"N" * 20_000 + b".", "it", {}, lambda identity: None, max_ops=10_000)


EMOJI = "\U0001f600".encode()


@pytest.mark.parametrize(
    "block",
    [
        b"}", b"]", b"\x8f", b"\x97", b"(l", b"(t", b"(d", b")\x85", b"NN\x86", b"B" + bytes(4), b"G" + bytes(8),
        b"J\1\2\3\4",
        b"}\x94", b"Nr" + b"\xfe" * 4, b"Pa\n", b"ca\nb\n", b"ca\nb\n)R", b"ca\nb\n)\x81", b"}U\1aNs", b"}(U\1aNU\1bNu",
        b"U\xff" + b"x" * 251 + EMOJI, b"V" + b"x" * 250 + b"\\U0001F600\n", b"S'" + b"\xff" * 255 + b"'\n",
        b"\x8a\xff" + b"\x7f" * 255, b"I" + b"9" * 900 + b"\n",
    ],
)  # fmt: skip
def test_what_a_pickle_takes_is_counted(block: bytes) -> None:
    """The count is at least what CPython takes, for many copies of whatever an instruction makes."""
    limit = 2 << 20
    program = b"(" + block * (limit // 8 // len(block)) + b"l."
    for count in range(4):  # copies, until they exceed the limit
        tracemalloc.start()
        try:
            with contextlib.suppress(UnreadableInput):
                read_pickle(program, "it", {}, lambda identity: None, max_memory=limit + len(program))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 1.25 * limit, (count, peak)
        program = b"(" + program[1:-2] * 4 + b"l."


def test_distinct_memo_numbers_are_counted() -> None:
    program = b"N" + b"".join(b"r" + (i * 7 + 3).to_bytes(4, "little") for i in range(100_000)) + b"."
    with pytest.raises(UnreadableInput, match="limit on memory"):
        read_pickle(program, "it", {}, lambda identity: None, max_memory=2 << 20)


def test_long_texts_are_skipped_without_a_copy() -> None:
    long = b"\xff" * (20 << 20)
    for program in (
        b"X" + len(long).to_bytes(4, "little") + long,
        b"\x8d" + len(long).to_bytes(8, "little") + long,
        b"T" + len(long).to_bytes(4, "little") + long,
        b"V" + long + b"\n",
        b"S'" + long + b"'\n",
        b"P" + long + b"\n",
        b"\x8b" + len(long).to_bytes(4, "little") + long,
        b"c" + long + b"\nx\n",
        b"I" + long + b"\n",
        b"F" + long + b"\n",
    ):
        program += b"."
        tracemalloc.start()
        try:
            with contextlib.suppress(UnreadableInput):
                assert type(read(program)) is PickledObject
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 1 << 20


@pytest.mark.parametrize("numbers", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 2, 0, 5), (7, 0, 1, 2), (0, 0, 1, 1)])
def test_memo_numbers_in_any_order_are_those_of_pickle(numbers: tuple[int, ...]) -> None:
    puts = b"".join(b"K%cq%c0" % (10 + i, number) for i, number in enumerate(numbers))
    program = b"\x80\x04" + puts + b"K\x63\x94(" + b"".join(b"h%c" % n for n in (*numbers, len(set(numbers)))) + b"t."
    assert read(program) == pickle.loads(program)


def test_names_above_the_length_limit_are_dropped() -> None:
    long = b"X" + (5000).to_bytes(4, "little") + b"k" * 5000
    assert read(b"}" + long + b"Ns.") == {}
    with pytest.raises(UnreadableInput, match="its pickle is invalid"):
        read(b"c" + b"m" * 5000 + b"\nname\n.")


def test_builder_gets_few_arguments_however_long_the_call() -> None:
    seen: list[int] = []

    def build(arguments: tuple[object, ...]) -> object:
        seen.append(len(arguments))
        return None

    program = b"ca\nb\n(" + b"N" * 1000 + b"tR0" + b"(" + b"N" * 1000 + b"tQ."
    value, _ = read_pickle(program, "it", {Global("a", "b"): build}, build)
    assert type(value) is PickledObject
    assert seen == []


def test_deep_nesting_neither_recurses_nor_crashes() -> None:
    deep = 100_000
    for program in (b")" + b"\x85" * deep, b"]" * deep + b"a" * (deep - 1), b")" + b"]\x86" * deep):
        value = read(program + b".")
        del value
    assert read(b"})" + b"\x85" * deep + b"Ns.") == {}  # the deep tuple as a key


def test_damage_ends_in_a_value_or_one_sentence() -> None:
    value = {"a": [1, 2**70, 0.5, "text", b"bytes", (None, True)], "b": argparse.Namespace(x=1), "c": {1, 2}}
    for protocol in range(6):
        for raw in mangled(pickle.dumps(value, protocol), 300, seed=protocol):
            try:
                read_pickle(raw, "it", {}, lambda i: None)
            except TiebeamError as error:
                one_sentence(error)


def test_random_programs_end_in_a_value_or_one_sentence() -> None:
    rng = random.Random(7)
    instructions = b"(.0123FIJKLMNPQRSTUVXabcdeghijloprstu]})" + bytes(range(0x80, 0x99)) + b"\n\x01"
    for _ in range(3000):
        try:
            read_pickle(bytes(rng.choices(instructions, k=rng.randrange(1, 60))), "it", {}, lambda i: None)
        except TiebeamError as error:
            one_sentence(error)
