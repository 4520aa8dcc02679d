"""axe-core in a browser page, as the tests of the studio and of the report run it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

VENDOR = Path(__file__).parent.parent / "studio" / "vendor" / "axe-core-4.14.0"


def axe(page: Any) -> list[str]:
    """Serious and critical violations, as readable lines."""
    page.evaluate((VENDOR / "axe.min.js").read_text())
    found = page.evaluate("axe.run({resultTypes: ['violations']})")
    return [
        f"{violation['id']}: {node['target']} {node['failureSummary']}"
        for violation in found["violations"]
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]
