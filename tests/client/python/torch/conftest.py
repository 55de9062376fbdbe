"""Runs functions of a program on several ranks of one job, each in its own process, under `weft run`.

A test file has the oracle's sentence in its name; the ranks' functions lie in the programs beside it. A
failed job shows the log of each rank.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[3]
BUILD = Path(os.environ.get("WEFT_BUILD", ROOT / "build")).resolve()
SECONDS = 120


class Job:
    """One finished job: its exit status and its logs by file name."""

    def __init__(self, status, output, directory):
        self.status, self.output = status, output
        self.logs = {path.name: path.read_text(errors="replace") for path in sorted(directory.glob("*.log"))}

    def text(self):
        return "\n".join([self.output] + [f"---- {name}\n{log}" for name, log in self.logs.items()])


def run_job(program, functions, *arguments, ranks=2, shards=0, environment=None):
    """Run `functions` ("one,two") of `program` on all ranks and return the Job. Each rank is a process of its
    own.

    Functions of one job share the start of Python and PyTorch, which takes most of the time.
    """
    with tempfile.TemporaryDirectory(prefix="weft-torch-") as directory:
        command = [
            BUILD / "tools/weft",
            "run",
            "-n",
            str(ranks),
            "-s",
            str(shards),
            "--log-dir",
            directory,
            "--",
        ]
        command += [sys.executable, HERE / "rank_main.py", HERE / program, functions, *arguments]
        settings = {
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "WEFT_LIBRARY": str(BUILD / "client/libweft.so"),
            "PYTHONPATH": str(ROOT / "client/python"),
            "PYTHONPYCACHEPREFIX": str(BUILD / "pycache"),
        }
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
            env={**os.environ, **settings, **(environment or {})},
            cwd=directory,
        )
        return Job(done.returncode, done.stdout, Path(directory))


@pytest.fixture
def run():
    """run(program, function, *arguments, ranks=2, shards=0): the job ends well on all ranks."""

    def checked(*arguments, **options):
        job = run_job(*arguments, **options)
        assert job.status == 0, job.text()
        return job

    return checked


@pytest.fixture
def run_failing():
    """As run, for a job that fails: returns the Job."""
    return run_job
