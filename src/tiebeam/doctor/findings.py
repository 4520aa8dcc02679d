"""A finding: a code from the table, with the evidence of this model and the change that would cure it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tiebeam.doctor.codes import CODES, Code, Severity


@dataclass(frozen=True, slots=True)
class Finding:
    """`evidence` has the names and numbers; `repair` names the safe cure that `--fix` may apply, if there is one."""

    code: str
    evidence: str
    repair: str | None = None
    severity: Severity | None = None
    """Only when this case differs from the code's usual severity."""

    @property
    def about(self) -> Code:
        return CODES[self.code]

    @property
    def level(self) -> Severity:
        return self.severity or self.about.severity

    def to_dict(self) -> dict[str, Any]:
        about = self.about
        return {
            "code": self.code,
            "severity": str(self.level),
            "title": about.title,
            "evidence": self.evidence,
            "cause": about.cause,
            "fix": about.cure,
            "repair": self.repair,
        }
