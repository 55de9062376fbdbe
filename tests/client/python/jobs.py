"""Jobs of the tests: a program on every rank under `weft run`, with the library and the package of this tree."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
BUILD = Path(os.environ.get("WEFT_BUILD", ROOT / "build")).resolve()
WEFT = BUILD / "tools/weft"
RANK = Path(__file__).resolve().parent / "rank.py"


def environment(**more):
    """Variables of a process that imports the package of this tree."""
    path = os.pathsep.join(filter(None, [str(ROOT / "client/python"), os.environ.get("PYTHONPATH")]))
    own = {"WEFT_LIBRARY": str(BUILD / "client/libweft.so.0"), "OMP_NUM_THREADS": "1", "WEFT_DEADLINE_MS": "60000", "PYTHONPATH": path,
           "PYTHONPYCACHEPREFIX": str(BUILD / "pycache")}  # fmt: skip
    return {**{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}, **own, **more}


def python(forks=None):
    """Words that run Python arguments: in a new interpreter, or as a fork of the test process by `forks`."""
    return [sys.executable, "-I", "-S", RANK] if forks else [sys.executable]


class Job:
    """One finished job: its exit status, the launcher's output, and its logs by file name."""

    def __init__(self, done, logs):
        self.status, self.output = done.returncode, done.stdout
        self.logs = {path.name: path.read_text(errors="replace") for path in sorted(logs.glob("*.log"))}

    def text(self):
        return "\n".join([self.output] + [f"---- {name}\n{log}" for name, log in self.logs.items()])

    def lines(self, word):
        """Lines of all ranks' logs that begin with `word`."""
        texts = [log for name, log in self.logs.items() if name.startswith("rank")]
        return [line for text in texts for line in text.splitlines() if line.startswith(word)]


def run(logs, ranks, *arguments, options=(), timeout=120, env=None, cwd=None, forks=None):
    """Run `python arguments` on every rank and return the Job. logs: a folder.

    Each rank is a process: a new interpreter, or a fork of the test process by `forks`, a forks.Server.
    """
    env = {**(env or {}), **({"WEFT_TEST_FORKS": forks.path} if forks else {})}
    command = [WEFT, "run", "-n", ranks, "-l", logs, *options, "--", *python(forks), *arguments]
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=timeout, env=environment(**env), cwd=cwd)  # fmt: skip
    return Job(done, Path(logs))
