"""The command line: one file per verb, imported only when that verb is called.

`main` runs a verb. verbs.py has the overview, the parsing of arguments (click) and the exit codes. `tiebeam inspect
MODEL` does not need click, whose import takes as long as reading the headers of a model.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tiebeam._lazy import loader

if TYPE_CHECKING:
    from tiebeam.cli.verbs import GROUPS, VERBS, tiebeam
else:
    __getattr__ = loader(__name__, dict.fromkeys(("GROUPS", "VERBS", "tiebeam"), "tiebeam.cli.verbs"))

__all__ = ["GROUPS", "VERBS", "main", "tiebeam"]


def main(arguments: list[str] | None = None) -> None:
    """The console entry point: run a verb, turn errors into one sentence and an exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    failed: BaseException | None = None
    verb, *rest = arguments or [""]
    models = [argument for argument in rest if argument != "--json"]
    if verb == "inspect" and len(models) == 1 and len(rest) <= 2 and not models[0].startswith("-"):
        from tiebeam.cli.inspect_report import show

        try:
            show(models[0], as_json="--json" in rest)
            return
        except BaseException as error:  # verbs.run raises it again: one place turns errors into sentences
            failed = error
    from tiebeam.cli.verbs import run

    run(arguments, failed)
