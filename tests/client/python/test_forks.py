"""A rank that is a fork of the test process begins and ends as a process of its own does."""

import os
import signal
import subprocess
import threading

import jobs
import pytest


def start(forks, code, *arguments, **variables):
    """rank.py with this code; the caller waits for it."""
    environment = jobs.environment(WEFT_TEST_FORKS=forks.path, **variables)
    command = [*jobs.python(forks), "-c", code, *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("code, status, words", [
    ("print('done')", 0, ""), ("raise SystemExit(3)", 3, ""), ("raise SystemExit('a sentence')", 1, "a sentence"),
    ("1 / 0", 1, "ZeroDivisionError"), ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL, ""),
])  # fmt: skip
def test_the_status_is_that_of_the_program(forks, code, status, words):
    rank = start(forks, code)
    _, errors = rank.communicate(timeout=60)
    assert rank.returncode == status and words in errors, errors


def test_a_rank_has_its_own_surroundings(forks, tmp_path):
    code = ("import atexit, os, sys, threading; atexit.register(print, 'exit handler');"
            "threading.Thread(target=lambda: print('thread', os.environ['WORD'], sys.argv[1])).start()")  # fmt: skip
    rank = start(forks, code, "argument", WORD="word")
    output, errors = rank.communicate(timeout=60)
    assert output == "thread word argument\nexit handler\n", output + errors
    assert "WORD" not in os.environ


def test_a_rank_ends_with_its_launcher(forks):
    reader, writer = os.pipe()
    rank = start(forks, f"import os, time; fd = os.open('/proc/{os.getpid()}/fd/{writer}', os.O_WRONLY);"
                        "print('begun', flush=True); time.sleep(600)")  # fmt: skip
    assert rank.stdout.readline() == "begun\n"
    os.close(writer)
    rank.kill()
    rank.wait()
    ended = threading.Thread(target=os.read, args=(reader, 1))  # ends when no process has the other end
    ended.start()
    ended.join(60)
    assert not ended.is_alive()
    os.close(reader)
    rank.communicate()
