"""Findings: every way a tie breaks, with its cause and its cure."""

from tiebeam.doctor.codes import CODES, Code, Severity
from tiebeam.doctor.examination import Diagnosis, examine
from tiebeam.doctor.findings import Finding

__all__ = ["CODES", "Code", "Diagnosis", "Finding", "Severity", "examine"]
