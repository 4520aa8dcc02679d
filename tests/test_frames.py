"""`to_frame()` of a report and of a diagnosis: a row per matrix, a row per finding."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import tiebeam
from tiebeam.errors import MissingExtra


def test_a_report_has_a_row_per_matrix_and_a_diagnosis_a_row_per_finding(example_directory: Path) -> None:
    report = tiebeam.inspect(example_directory / "merged")
    matrices = report.to_frame()
    assert matrices["name"].tolist() == [report.pair.embed.name, report.pair.head.name]
    assert matrices[["rows", "dim"]].values.tolist() == [[report.pair.embed.rows, report.pair.embed.dim]] * 2
    diagnosis = tiebeam.diagnose(example_directory / "merged")
    findings = diagnosis.to_frame()
    assert findings["code"].tolist() == [finding.code for finding in diagnosis.findings]
    assert findings["fix"].tolist() == [finding.fix for finding in diagnosis.findings]


def test_a_diagnosis_without_findings_has_columns_and_no_rows(example_directory: Path) -> None:
    found = tiebeam.diagnose(example_directory / "tied").to_frame()
    assert list(found.columns) == ["code", "severity", "title", "evidence", "fix"]
    assert len(found) == 0


def test_without_pandas_the_extra_is_named(example_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtra, match=r"tiebeam\[frames\]"):
        tiebeam.inspect(example_directory / "tied").to_frame()
