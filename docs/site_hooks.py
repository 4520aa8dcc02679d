"""What mkdocs does beside its own work: the studio's lesson for the front page, and a page per notebook."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent


def on_files(files: Any, config: Any) -> Any:
    """A page per notebook, with a link to the file: a browser shows the file itself as JSON."""
    from mkdocs.structure.files import File

    for path in sorted((DOCS / "notebooks").glob("*.ipynb")):
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=notebook_page(path)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links from other pages lead to the notebook's page."""
    return re.sub(r"\((notebooks/[\w-]+)\.ipynb\)", r"(\1.md)", markdown)


def notebook_page(path: Path) -> str:
    """The cells of a notebook as Markdown; it is stored without outputs."""
    cells = json.loads(path.read_text("utf-8"))["cells"]
    texts = ["".join(cell["source"]) for cell in cells]
    parts = [
        text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```"
        for cell, text in zip(cells, texts, strict=True)
        if text.strip()
    ]
    parts.insert(1, f"[Download this notebook]({path.name}). The tests execute it; run it to see its tables.")
    return "\n\n".join(parts) + "\n"


def on_post_build(config: Any) -> None:
    import shutil

    from tiebeam.studio.pages import export

    target = Path(config["site_dir"]) / "demo"
    shutil.rmtree(target, ignore_errors=True)
    export(target)
