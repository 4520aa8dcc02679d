"""The pages of the studio as files: what the server serves and what `--export` writes.

Every page is static/page.html with its title and view filled in; all other files are served unchanged. Requests look up
a name in a fixed dictionary, so no request can reach another file.
"""

from __future__ import annotations

import html
import json
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tiebeam._fs import Kind, explaining, staging
from tiebeam._version import __version__
from tiebeam._visible import visible
from tiebeam.errors import BadRequest

STATIC = Path(__file__).parent / "static"
CURVES = STATIC.parent.parent / "compare" / "static"
"""The charts that the pages and a comparison's report draw alike."""
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
    """Whether the view needs the server."""

    @property
    def file(self) -> str:
        return "index.html" if self.name == "lesson" else f"{self.name}.html"


VIEWS = (
    View(
        "lesson",
        "Lesson",
        "Why the embedding and the LM head of a language model can be one matrix, and what that costs.",
        False,
    ),
    View("calculator", "Calculator", "How many parameters and bytes tying the embedding and the LM head saves.", False),
    View("models", "Models", "Embedding and LM head of your models, and the findings of doctor.", True),
    View("runs", "Runs", "Live curves of your training runs.", True),
    View("generate", "Generate", "Generate text from a checkpoint, with the logits of each token.", True),
)


def media_type(name: str) -> str:
    return _TYPES[Path(name).suffix]


@cache
def files(live: bool) -> dict[str, bytes]:
    """All files of the site by name: for the server (`live`), or only the views that need no server."""
    views = [view for view in VIEWS if live or not view.live]
    built = {view.file: _page(view, views, live) for view in views}
    skipped = {f"views/{view.name}{end}" for view in VIEWS if view not in views for end in (".js", ".css")}
    skipped |= {"page.html", "not_found.html"}
    for path in sorted(STATIC.rglob("*")):
        name = path.relative_to(STATIC).as_posix()
        needless = name in skipped or (not live and name.startswith("model/"))
        if path.is_file() and path.suffix in _TYPES and not needless:
            built[name] = path.read_bytes()
    for path in [*sorted(CURVES.glob("*curve*")), CURVES / "axes.js"]:
        built[f"curves/{path.name}"] = path.read_bytes()
    built["catalog.json"] = json.dumps(catalog(), separators=(",", ":")).encode()
    return built


@cache
def catalog() -> dict[str, object]:
    """Known models, and how many tie by share of the LM head."""
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
    text = (STATIC / "page.html").read_text("utf-8")
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


def not_found(path: str) -> bytes:
    """The page for an address that does not exist: what was asked for, and the way back."""
    views = "".join(f'<li><a href="/{view.file}">{view.title}</a>: {html.escape(view.about)}</li>' for view in VIEWS)
    text = (STATIC / "not_found.html").read_text()
    return text.replace("{{path}}", html.escape(visible(path))).replace("{{views}}", views).encode()


def export(directory: Path) -> list[Path]:
    """Write the lesson and the calculator as a static site, replacing an older one; other files there are an error."""
    site = files(live=False)
    kind = Kind("the site", Path.is_dir, lambda name: name in site)
    if directory.exists():
        if not directory.is_dir():
            raise BadRequest(f"{directory} is a file; pass a directory")
        other = kind.stranger(directory)
        if other is not None:
            raise BadRequest(f"{directory} already has {other}; pass an empty or new directory")
    with explaining(directory), staging(Path(os.path.realpath(directory)), force=True) as stage:
        for name, raw in site.items():
            path = stage.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(raw)
        stage.commit()
    return [directory / name for name in site]
