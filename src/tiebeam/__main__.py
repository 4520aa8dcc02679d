"""`python -m tiebeam` is the command line."""

from tiebeam.cli import main

main()
