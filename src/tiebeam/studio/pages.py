"""The pages as files: what the server serves, and what `--export` writes.

Every page is static/page.html with its title and view filled in; everything else is served as it lies there.
Names are looked up in a table made once, so no request can reach another file.
"""

from __future__ import annotations

import html
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tiebeam._version import __version__
from tiebeam.errors import BadRequest

STATIC = Path(__file__).parent / "static"
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}


@dataclass(frozen=True, slots=True)
class View:
    name: str
    title: str
    about: str
    live: bool
    """Whether it needs the server."""

    @property
    def file(self) -> str:
        return "index.html" if self.name == "lesson" else f"{self.name}.html"


VIEWS = (
    View("lesson", "Lesson", "Why the two ends of a language model may be one matrix, and what that costs.", False),
    View("calculator", "Calculator", "What tying the embedding and the head saves, exactly.", False),
    View("models", "Models", "The pair of each of your models, and what the doctor finds.", True),
    View("runs", "Runs", "Live curves of your trainings.", True),
    View("generate", "Generate", "Text from a checkpoint, with the logits behind each token.", True),
)


def media_type(name: str) -> str:
    return _TYPES[Path(name).suffix]


@cache
def files(live: bool) -> dict[str, bytes]:
    """Every file of the site by its name: for the server (`live`), or without the views that need one."""
    views = [view for view in VIEWS if live or not view.live]
    made = {view.file: _page(view, views, live) for view in views}
    skipped = {f"views/{view.name}.js" for view in VIEWS if view not in views} | {"page.html"}
    for path in sorted(STATIC.rglob("*")):
        name = path.relative_to(STATIC).as_posix()
        if path.is_file() and path.suffix in _TYPES and name not in skipped:
            made[name] = path.read_bytes()
    made["catalog.json"] = json.dumps(catalog(), separators=(",", ":")).encode()
    return made


@cache
def catalog() -> dict[str, object]:
    """The known models, and how many of each band of the share tie."""
    from tiebeam.catalog import BANDS, known_models, verdict

    bands = []
    for band in BANDS:
        found = verdict(band.low / 100)
        bands.append({"low": band.low, "high": band.high, "label": str(band), "models": found.models,
                      "tied": found.tied, "short": found.short, "sentence": found.sentence})  # fmt: skip
    return {"models": [model.to_dict() for model in known_models()], "bands": bands}


def _page(view: View, views: list[View], live: bool) -> bytes:
    links = "\n".join(
        f'        <li><a href="{other.file}"{" aria-current=page" if other is view else ""}>{other.title}</a></li>'
        for other in views
    )
    text = (STATIC / "page.html").read_text()
    for mark, value in {
        "{{title}}": html.escape(view.title),
        "{{about}}": html.escape(view.about),
        "{{view}}": view.name,
        "{{mode}}": "live" if live else "static",
        "{{links}}": links,
        "{{version}}": __version__,
    }.items():
        text = text.replace(mark, value)
    return text.encode()


def export(where: Path) -> list[Path]:
    """Write the lesson and the calculator as a static site; refuses a directory that holds something else."""
    mine = files(live=False)
    if where.exists():
        if not where.is_dir():
            raise BadRequest(f"{where} is a file; --export needs a directory")
        others = {path.relative_to(where).as_posix() for path in where.rglob("*") if path.is_file()} - mine.keys()
        if others:
            raise BadRequest(f"{where} already holds {min(others)}; name an empty directory, or a new one")
    written = []
    for name, raw in mine.items():
        path = where / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(raw)
        except OSError as error:
            raise BadRequest(f"{path} cannot be written: {error.strerror or error}") from None
        written.append(path)
    return written
