"""harness.py - common parts of the multi-process tests: a scratch directory, the processes of a job, their ends.

Each test file is a unittest program that meson starts with WEFT_BUILD set; by hand:
    WEFT_BUILD=build python3 tests/system/test_deaths.py [-k NAME] [-v]
A test that fails keeps its directory and prints its path.
"""

import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tools", "dev"))
sys.dont_write_bytecode = True

import jobs  # noqa: E402

BUILD = os.path.abspath(os.environ.get("WEFT_BUILD", os.path.join(ROOT, "build")))
PROGRAMS = jobs.Programs(BUILD)
DATA = "/usr/share/datasets/fashion-mnist"


def sanitized():
    """Whether the programs are built with a sanitizer, which adds memory and time of its own."""
    with open(os.path.join(BUILD, "meson-info", "intro-buildoptions.json"), encoding="utf-8") as file:
        return next(option["value"] for option in json.load(file) if option["name"] == "b_sanitize") != "none"


class JobTest(unittest.TestCase):
    def setUp(self):
        for path in (PROGRAMS.weft, PROGRAMS.weftd, PROGRAMS.trainer):
            if not os.path.exists(path):
                self.skipTest(f"{path} is not built")
        self.directory = tempfile.mkdtemp(prefix="weft-system-")
        self.groups = []

    def tearDown(self):
        for group in self.groups:
            group.__exit__()
        result = self._outcome.result  # also holds subtests, whose test_case is this test
        failed = any(getattr(test, "test_case", test) is self for test, _ in result.errors + result.failures)
        if failed:
            print(f"{self.id()}: logs are in {self.directory}", file=sys.stderr)
        else:
            shutil.rmtree(self.directory, ignore_errors=True)

    def path(self, *parts):
        return os.path.join(self.directory, *parts)

    def group(self, name="job"):
        group = jobs.Group(self.path(name))
        self.groups.append(group)
        return group

    def run_job(self, shards, workers, words, name="run", seconds=100, environment=None):
        """Runs `weft run` to its end. Returns the completed process with its whole output in .stdout."""
        log_directory = self.path(name)
        command = [PROGRAMS.weft, "run", "-s", str(shards), "-n", str(workers), "--log-dir", log_directory, "--"] + words
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds,
                              start_new_session=True, env={**os.environ, **(environment or {})})
        for log in sorted(glob.glob(os.path.join(log_directory, "*.log"))):
            with open(log, errors="replace") as file:
                done.stdout += file.read()
        return done

    def train(self, shards, workers, arguments, name="run", **more):
        done = self.run_job(shards, workers, [PROGRAMS.trainer] + arguments, name, **more)
        self.assertEqual(done.returncode, 0, done.stdout)
        return done

    def log(self, group, name):
        with open(group.log_path(name), errors="replace") as file:
            return file.read()

    def job_variables(self, group):
        """What names the job of jobs.start_by_hand, for the commands of weft."""
        with open(os.path.join(group.log_directory, "ports"), encoding="utf-8") as file:
            coordinator = re.search(r"^coordinator=(\S+)$", file.read(), re.MULTILINE)[1]
        return {"WEFT_JOB": os.path.basename(os.path.abspath(group.log_directory)), "WEFT_COORDINATOR": coordinator}

    def wait_for_steps(self, group, csv_path, seconds=60):
        """Waits until the trainer has reported a step: the job is in the middle of training."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            row = jobs.last_row(csv_path)
            if row and int(row["step"]) > 0:
                return
            for name, process in group.processes:
                self.assertIsNone(process.poll(), f"{name} ended early:\n{self.log(group, name)}")
            time.sleep(0.02)
        self.fail("no step was reported in time")

    def wait_for(self, what, condition, group=None, seconds=60):
        """Returns the first true value of condition(); OSError counts as false. No process of `group` ends meanwhile."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                value = condition()
            except OSError:
                value = None
            if value:
                return value
            for name, process in group.processes if group else []:
                if process.poll() is not None:
                    self.fail(f"{name} ended before {what}:\n{self.log(group, name)}")
            time.sleep(0.1)
        self.fail(f"not seen within {seconds} s: {what}")

    def assert_nothing_left(self, mark):
        """Checks that no process has `mark`, a path of this test, in its command line or environment."""
        left = []
        for process in glob.glob("/proc/[0-9]*"):
            try:
                with open(process + "/cmdline", "rb") as file:
                    command = file.read()
            except OSError:
                continue
            if mark.encode() in command and int(os.path.basename(process)) != os.getpid():
                left.append(command.replace(b"\0", b" ").decode(errors="replace"))
        self.assertEqual(left, [])


def kill(process):
    os.kill(process.pid, signal.SIGKILL)


def ends(processes, seconds):
    """{name: seconds until it ended, or None}, for (name, Popen) pairs, waiting at most `seconds` for all."""
    started = time.monotonic()
    times = {name: None for name, _ in processes}
    while any(value is None for value in times.values()) and time.monotonic() - started < seconds:
        for name, process in processes:
            if times[name] is None and process.poll() is not None:
                times[name] = time.monotonic() - started
        time.sleep(0.01)
    return times


def cpu_seconds(pid):
    """Time on a CPU of all threads, nanosecond-exact (utime of /proc/PID/stat counts in ticks of 10 ms)."""
    total = 0
    for path in glob.glob(f"/proc/{pid}/task/*/schedstat"):
        with open(path) as file:
            total += int(file.read().split()[0])
    return total * 1e-9


def wake_count(pid):
    """Number of voluntary context switches of all threads of the process."""
    total = 0
    for path in glob.glob(f"/proc/{pid}/task/*/status"):
        with open(path) as file:
            total += next(int(line.split()[1]) for line in file if line.startswith("voluntary_ctxt_switches"))
    return total


def main():
    program = unittest.main(verbosity=2, exit=False)
    result = program.result
    if not result.wasSuccessful():
        sys.exit(1)
    sys.exit(77 if result.testsRun and len(result.skipped) == result.testsRun else 0)  # 77: meson counts it as skipped
