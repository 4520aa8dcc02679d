"""Check that a release is consistent: version, changelog, citation and tag agree, and the repository has its address.

python .ci/check_release.py v0.2.0
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import repository

ROOT = Path(__file__).parent.parent


def problems(tag: str, root: Path = ROOT) -> list[str]:
    """What keeps `tag` from being released; empty if nothing does."""
    found = []
    version = _match(root / "src" / "tiebeam" / "_version.py", r'__version__ = "(.+)"')
    if not re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", version):
        found.append(f"the version {version!r} is not X.Y.Z")
    if tag != f"v{version}":
        found.append(f"the tag is {tag}, and src/tiebeam/_version.py says {version}: the tag should be v{version}")
    cited = _match(root / "CITATION.cff", r"^version: (\S+)$")
    if cited != version:
        found.append(f"CITATION.cff says {cited}, and src/tiebeam/_version.py {version}")
    headings = re.findall(r"^## (.+)$", (root / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    released = [heading for heading in headings if heading != "Unreleased"]
    if not released or not re.fullmatch(rf"{re.escape(version)} \(\d{{4}}-\d\d-\d\d\)", released[0]):
        first = f"{released[0]!r}" if released else "missing"
        found.append(f"the first release in CHANGELOG.md is {first}; it should be '{version} (YYYY-MM-DD)'")
    return found + repository.problems(root)


def _match(path: Path, pattern: str) -> str:
    match = re.search(pattern, path.read_text("utf-8"), re.MULTILINE)
    return match[1] if match else ""


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    wrong = problems(sys.argv[1])
    for line in wrong:
        print(line, file=sys.stderr)
    print("not ready" if wrong else f"{sys.argv[1]} is consistent")
    sys.exit(bool(wrong))
