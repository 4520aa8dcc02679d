"""Options of the peer tests, and which peers are there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from peers import environments, matrix


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--full-matrix", action="store_true", help="Run every architecture in every peer; writes docs/loaders.md."
    )
    parser.addoption(
        "--observations",
        metavar="DIR",
        help="With --full-matrix: keep the answers in DIR, and run only what has none there.",
    )


def pytest_sessionstart(session: pytest.Session) -> None:
    asked = session.config.getoption("--full-matrix", default=False)
    if asked or os.environ.get("TIEBEAM_BUILD_PEERS") == "1":
        environments.build_all()


@pytest.fixture
def peer(request: pytest.FixtureRequest) -> matrix.Peer:
    """The peer that the test is parametrized with; the test is skipped if its environment was not built."""
    found = matrix.PEERS[request.param]
    if not found.ready():
        pytest.skip(f"{found.loader}: not built; run `python tests/peers/environments.py`")
    return found


@pytest.fixture
def observations(request: pytest.FixtureRequest) -> Path:
    """Where the full run keeps its answers."""
    given = request.config.getoption("--observations", default=None)
    return Path(given) if given else matrix.directory()
