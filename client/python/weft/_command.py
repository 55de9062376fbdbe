"""The commands `weft` and `weftd` of the package: the programs beside it, in the place of this process."""

import os
import sys
from pathlib import Path


def _execute(name):
    package = Path(__file__).resolve().parent
    program = package / "_bin" / name
    if not program.is_file():
        sys.exit(f"{name}: {program} does not exist; install the package with pip install, or run {name} of the build")
    os.environ.setdefault("WEFT_MODULE_DIR", str(package / "_lib/weft"))
    os.execv(program, [name, *sys.argv[1:]])


def weft():
    """Run the launcher and tools."""
    _execute("weft")


def weftd():
    """Run the shard server."""
    _execute("weftd")
