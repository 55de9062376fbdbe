"""Fixtures that run functions of a program on the ranks of one job.

A test file has the oracle's sentence in its name; the ranks' functions lie in the programs beside it. A
failed job shows the log of each rank.
"""

import functools
import sys
import tempfile
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import jobs  # noqa: E402

try:
    import torch  # noqa: F401
except ImportError:
    collect_ignore_glob = ["test_*.py"]
else:
    try:
        from torch.distributed.fsdp import fully_shard  # noqa: F401
    except ImportError:  # PyTorch before 2.6
        collect_ignore = [path.name for path in HERE.glob("test_*.py") if path.name != "test_process_group.py"]


def run_job(forks, program, functions, *arguments, ranks=2, shards=0, environment=None):
    """Run `functions` ("one,two") of `program` on all ranks and return the Job. Ranks are forks (../forks.py)."""
    settings = {"GLOO_SOCKET_IFNAME": "lo", **(environment or {})}
    with tempfile.TemporaryDirectory(prefix="weft-torch-") as directory:
        return jobs.run(directory, ranks, HERE / "rank_main.py", HERE / program, functions, *arguments,
                        options=["-s", shards], env=settings, cwd=directory, forks=forks)  # fmt: skip


@pytest.fixture
def run(forks):
    """run(program, function, *arguments, ranks=2, shards=0): the job ends well on all ranks."""

    def checked(*arguments, **options):
        job = run_job(forks, *arguments, **options)
        assert job.status == 0, job.text()
        return job

    return checked


@pytest.fixture
def run_failing(forks):
    """As run, for a job that fails: returns the Job."""
    return functools.partial(run_job, forks)
