"""The owner of the repository on GitHub: `Homepage` in pyproject.toml defines it, and every other file must agree.

python .ci/repository.py          say who it is, and which files disagree
python .ci/repository.py OWNER    write it into all of them
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PLACEHOLDER = "OWNER"
FILES = ("pyproject.toml", "CITATION.cff", "mkdocs.yml", ".github/ISSUE_TEMPLATE/config.yml", "docs/ci.md")
_OWNER = re.compile(
    r"(?P<before>github\.com/|https://|uses: )(?P<owner>[\w-]+)(?P<after>/tiebeam\b|\.github\.io/tiebeam\b)"
)


def owner(root: Path = ROOT) -> str:
    found = re.search(r'^Homepage = "https://github\.com/([\w-]+)/tiebeam"$', _text(root / FILES[0]), re.MULTILINE)
    return found[1] if found else ""


def problems(root: Path = ROOT) -> list[str]:
    """Why nothing can be released under this address; empty if it can."""
    wanted = owner(root)
    found = []
    if wanted in ("", PLACEHOLDER):
        found.append("pyproject.toml has no owner of the repository yet; run python .ci/repository.py with its name")
    for name in FILES:
        others = {match["owner"] for match in _OWNER.finditer(_text(root / name))}
        if others != {wanted}:
            found.append(
                f"{name} names {', '.join(sorted(others)) or 'no owner'}, and pyproject.toml {wanted or 'none'}"
            )
    return found


def write(name: str, root: Path = ROOT) -> None:
    for file in FILES:
        text = _OWNER.sub(lambda match: f"{match['before']}{name}{match['after']}", _text(root / file))
        (root / file).write_text(text, "utf-8")


def _text(path: Path) -> str:
    return path.read_text("utf-8")


if __name__ == "__main__":
    if len(sys.argv) == 2 and re.fullmatch(r"[\w-]+", sys.argv[1]):
        write(sys.argv[1])
    elif len(sys.argv) != 1:
        sys.exit(__doc__)
    wrong = problems()
    print("\n".join(wrong) or f"https://github.com/{owner()}/tiebeam")
    sys.exit(bool(wrong))
