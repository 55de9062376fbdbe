"""The fixture `job` runs a function of the test module on every rank of a job."""

import inspect
import subprocess
import sys
from pathlib import Path

import forks as fork_server
import jobs
import pytest


class FunctionJob:
    """Starts jobs whose logs share one folder; `lines` are those of the last job."""

    def __init__(self, logs, forks):
        self.logs, self.last, self.forks = logs, None, forks

    def run(self, ranks, function, *arguments, **options):
        """Run function(*arguments) on every rank; return (exit status, text of all ranks and of the launcher)."""
        path = Path(inspect.getsourcefile(function))
        code = (
            f"import sys; sys.path.insert(0, {str(path.parent)!r}); import {path.stem} as module; "
            f"module.{function.__name__}(*{arguments!r})"
        )
        self.last = jobs.run(self.logs, ranks, "-c", code, **{"forks": self.forks, **options})
        return self.last.status, self.last.text()

    def lines(self, word):
        """Lines of all ranks' logs that begin with `word`."""
        return self.last.lines(word)

    def __call__(self, ranks, function, *arguments, **options):
        """The same; the job must end well. Returns its text."""
        status, text = self.run(ranks, function, *arguments, **options)
        assert status == 0, text
        return text


@pytest.fixture(scope="session")
def forks():
    """Starts ranks as forks. Made before the first test that uses it: until then the tests have only imported modules."""
    server = fork_server.Server()
    yield server
    server.close()


@pytest.fixture
def job(tmp_path, forks):
    return FunctionJob(tmp_path / "logs", forks)


def python(code, **env):
    """Run `code` in a Python process of its own; return (exit status, output)."""
    made = subprocess.run([sys.executable, "-c", code], env=jobs.environment(**env), capture_output=True, text=True, timeout=60)
    return made.returncode, made.stdout + made.stderr
