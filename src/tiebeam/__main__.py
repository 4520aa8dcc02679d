"""Run the CLI: `python -m tiebeam`."""

from tiebeam.cli import main

main()
