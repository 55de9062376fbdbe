"""The examples run, and the GPT learns the same on one rank and on two."""

import subprocess
import sys

import jobs
import pytest

pytest.importorskip("numpy")
EXAMPLES = jobs.ROOT / "examples/python"


def run(tmp_path, ranks, *arguments, options=(), forks=None):
    job = jobs.run(tmp_path / "logs", ranks, *arguments, options=options, timeout=240, forks=forks)
    assert job.status == 0, job.text()
    return job.logs["rank0.log"]


def test_all_reduce(tmp_path):
    assert "rank 0 of 3: mean 1.0" in run(tmp_path, 3, EXAMPLES / "all_reduce.py")


def test_regression_is_equal_through_shards_and_all_reduce(tmp_path):
    dense = run(tmp_path, 2, EXAMPLES / "regression.py")
    assert dense == run(tmp_path, 2, EXAMPLES / "regression.py", options=["-s", "1"])


KILLED = """
import os, runpy, signal, sys, time
import weft
begin = weft.Session.step_begin
def step_begin(session, *arguments, **options):
    if session.rank == 1 and session.ranks == 3 and session.step_next == 50 and not session.newcomer:
        os.kill(os.getpid(), signal.SIGKILL)
    if session.ranks < 3:
        time.sleep(0.05)  # the steps last until the new rank has started
    return begin(session, *arguments, **options)
weft.Session.step_begin = step_begin
runpy.run_path(sys.argv[1], run_name="__main__")
"""


@pytest.mark.parametrize("options", [(), ("-s", "1")])
def test_regression_without_a_lost_rank_and_with_a_new_one(tmp_path, options):
    program = tmp_path / "killed.py"
    program.write_text(KILLED)
    options = ["--min-workers", "2", "--restarts", "1", *options]
    job = jobs.run(tmp_path / "logs", 3, program, EXAMPLES / "regression.py", options=options, timeout=240)
    assert job.status == 0, job.text()
    assert "200 steps on 3 ranks: largest error" in job.logs["rank0.log"], job.text()
    assert "the job continues without it" in job.text()


def held_out(output):
    return float(output.splitlines()[-1].split()[-1])


def torchrun(*arguments):
    """The same program under torchrun: rank 0's library coordinates."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", *arguments]
    made = subprocess.run([str(part) for part in command], env=jobs.environment(), capture_output=True, text=True, timeout=240)
    assert made.returncode == 0, made.stdout + made.stderr
    return made.stdout


def test_gpt(tmp_path, request):
    pytest.importorskip("torch")
    forks = request.getfixturevalue("forks")  # made now: it has torch
    text = tmp_path / "text"
    text.write_bytes(b"".join(path.read_bytes() for path in sorted((jobs.ROOT / "docs").glob("*.md"))))
    small = [EXAMPLES / "gpt.py", "--text", text, "--layers", "1", "--width", "32", "--length", "32", "--steps", "12", "--lr", "0.01"]
    one, two = (run(tmp_path, ranks, *small, forks=forks) for ranks in (1, 2))
    assert abs(held_out(one) - held_out(two)) < 2e-3
    assert held_out(torchrun(*small)) == held_out(two)
    saved = tmp_path / "gpt.pt"
    small += ["--codec", "powersgd:rank=2", "--checkpoint", saved]
    first, second = (held_out(run(tmp_path, ranks, *small, forks=forks)) for ranks in (2, 1))
    assert second < first < 5
