"""Find out what is wrong with a pair: findings with cause and fix, and what each loader will do."""

from typing import TYPE_CHECKING

from tiebeam._lazy import loader

if TYPE_CHECKING:
    from tiebeam.doctor.diagnosis import Diagnosis, diagnose, examine
    from tiebeam.doctor.rule import Finding, Rule, Severity
    from tiebeam.doctor.rules import RULES

__all__ = ["RULES", "Diagnosis", "Finding", "Rule", "Severity", "diagnose", "examine"]

__getattr__ = loader(
    __name__,
    {
        "Diagnosis": "tiebeam.doctor.diagnosis",
        "Finding": "tiebeam.doctor.rule",
        "RULES": "tiebeam.doctor.rules",
        "Rule": "tiebeam.doctor.rule",
        "Severity": "tiebeam.doctor.rule",
        "diagnose": "tiebeam.doctor.diagnosis",
        "examine": "tiebeam.doctor.diagnosis",
    },
)
