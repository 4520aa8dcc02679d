"""Every finding is documented, and every code can be raised by a test."""

import re
from pathlib import Path

import pytest

from tiebeam.doctor.codes import CODES

HERE = Path(__file__).parent


@pytest.mark.parametrize("code", CODES.values(), ids=list(CODES))
def test_a_code_says_everything_a_reader_needs(code):
    assert re.fullmatch(r"TB[1-6]\d\d", code.code)
    assert not code.title.endswith(".")
    for text in (code.cause, code.cure, code.met):
        assert text.endswith((".", ")"))


def test_every_code_is_raised_by_some_test():
    tests = "".join(path.read_text() for path in HERE.glob("test_*.py") if path.name != "test_codes.py")
    assert [code for code in CODES if code not in tests] == []


def test_every_code_is_raised_by_the_doctor():
    sources = "".join(path.read_text() for path in (HERE.parent.parent / "src/tiebeam/doctor").glob("*.py"))
    assert [code for code in CODES if sources.count(f'"{code}"') < 2] == []
