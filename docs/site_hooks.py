"""What mkdocs does beside its own work: write the studio's lesson into the site, for the front page."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def on_post_build(config: Any) -> None:
    import shutil

    from tiebeam.studio.pages import export

    target = Path(config["site_dir"]) / "demo"
    shutil.rmtree(target, ignore_errors=True)
    export(target)
