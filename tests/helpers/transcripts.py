"""Console transcripts in Markdown pages."""

import re
from pathlib import Path

BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)


def transcripts(page: Path) -> list[tuple[str, str]]:
    """(command, expected output) of every `$ ` line in the page's console blocks."""
    found = []
    for block in BLOCK.findall(page.read_text()):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            found.append((command, output.rstrip()))
    return found
