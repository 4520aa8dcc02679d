"""Find out what is wrong with a pair: findings with cause and fix, and what each loader will do."""

from tiebeam.doctor.diagnosis import Diagnosis, diagnose, examine
from tiebeam.doctor.rule import Finding, Rule, Severity
from tiebeam.doctor.rules import RULES

__all__ = ["RULES", "Diagnosis", "Finding", "Rule", "Severity", "diagnose", "examine"]
