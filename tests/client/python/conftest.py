"""Jobs of several ranks: the fixture `job` runs a function of the test module on every rank, under `weft run`."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
BUILD = Path(os.environ.get("WEFT_BUILD", ROOT / "build"))
WEFT = BUILD / "tools/weft"


def environment():
    made = dict(os.environ, WEFT_LIBRARY=str(BUILD / "client/libweft.so.0"), OMP_NUM_THREADS="1", WEFT_DEADLINE_MS="60000")
    made["PYTHONPATH"] = os.pathsep.join([str(ROOT / "client/python"), made.get("PYTHONPATH", "")])
    return made


class Job:
    def __init__(self, logs):
        self.logs = logs

    def run(self, ranks, function, *arguments, options=(), timeout=120, env=None):
        """Run function(*arguments) on every rank; return (exit status, text of all ranks and of the launcher)."""
        path = inspect.getsourcefile(function)
        code = (
            f"import sys; sys.path.insert(0, {str(Path(path).parent)!r}); import {Path(path).stem} as module; "
            f"module.{function.__name__}(*{arguments!r})"
        )
        command = [str(WEFT), "run", "-n", str(ranks), "-l", str(self.logs), *options, "--", sys.executable, "-c", code]
        made = subprocess.run(command, env=dict(environment(), **(env or {})), capture_output=True, text=True, timeout=timeout)
        logs = "".join(path.read_text(errors="replace") for path in sorted(self.logs.glob("*.log")))
        return made.returncode, logs + made.stdout + made.stderr

    def lines(self, word):
        """Lines of all ranks' logs that begin with `word`."""
        texts = [path.read_text(errors="replace") for path in sorted(self.logs.glob("rank*.log"))]
        return [line for text in texts for line in text.splitlines() if line.startswith(word)]

    def __call__(self, ranks, function, *arguments, **options):
        """The same; the job must end well. Returns its text."""
        status, text = self.run(ranks, function, *arguments, **options)
        assert status == 0, text
        return text


@pytest.fixture
def job(tmp_path):
    return Job(tmp_path / "logs")


def python(code, **env):
    """Run `code` in a Python process of its own; return (exit status, output)."""
    made = subprocess.run([sys.executable, "-c", code], env=dict(environment(), **env), capture_output=True, text=True, timeout=60)
    return made.returncode, made.stdout + made.stderr
