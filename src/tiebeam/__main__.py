"""Run the CLI: `python -m tiebeam`, and the command `tiebeam`."""

import gc
import os
import sys


def main() -> None:
    """Run one command in this process, then end it.

    Nothing that is imported is garbage, so nothing is collected meanwhile, nor searched again when the process ends.
    `inspect` makes none itself; every other verb has the collector back before it starts.
    """
    gc.disable()
    if sys.argv[1:2] == ["inspect"]:
        # It multiplies no matrices: starting the threads of NumPy's BLAS takes longer than comparing a pair.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from tiebeam.cli import main as run

    if sys.argv[1:2] != ["inspect"]:
        gc.enable()
    try:
        run()
    finally:
        gc.freeze()


if __name__ == "__main__":
    main()
