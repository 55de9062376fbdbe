"""jobs.py - starts the processes of one training job, follows its report and ends its processes.

A job is started through `weft run` on this host, or process by process, each in a network namespace of its own
(docs/running-by-hand.md, automated). No process outlives its job: every process leads a process group, which is
killed at the end.
"""

import csv
import json
import os
import secrets
import signal
import subprocess
import time


# Variables of the calling shell that would name another job.
JOB_VARIABLES = ("WEFT_COORDINATOR", "WEFT_JOB", "WEFT_RANK", "WEFT_RANKS", "WEFT_SECRET", "WEFT_SECRET_FILE")


class JobFailed(Exception):
    """One sentence: what failed, and the path of the log."""


class Programs:
    def __init__(self, build):
        self.weft = os.path.join(build, "tools", "weft")
        self.weftd = os.path.join(build, "tools", "weftd")
        self.trainer = os.path.join(build, "examples", "fashion_mnist")


class Group:
    """Processes of one job: started, watched, ended together."""

    def __init__(self, log_directory):
        self.log_directory = log_directory
        self.processes = []  # (name, Popen)
        os.makedirs(log_directory, exist_ok=True)

    def start(self, name, words, environment=None):
        inherited = {key: value for key, value in os.environ.items() if key not in JOB_VARIABLES}
        log = open(self.log_path(name), "w")
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                                   env={**inherited, **(environment or {})})
        log.close()
        self.processes.append((name, process))
        return process

    def log_path(self, name):
        return os.path.join(self.log_directory, name + ".log")

    def wait(self, seconds, watch=None):
        """Waits until all have ended. JobFailed names the first process that failed, or those still running."""
        deadline = time.monotonic() + seconds
        while any(process.poll() is None for _, process in self.processes):
            for name, process in self.processes:
                if process.poll() not in (None, 0):
                    time.sleep(2.5)  # the other processes end and log the reason; then their logs are complete
                    raise JobFailed(f"{name} ended with status {process.returncode}: {self.last_words(name)}")
            if time.monotonic() > deadline:
                late = ", ".join(name for name, process in self.processes if process.poll() is None)
                raise JobFailed(f"not done after {seconds:.0f} s: {late}; logs are in {self.log_directory}")
            if watch:
                watch()
            time.sleep(0.1)
        for name, process in self.processes:
            if process.returncode != 0:
                raise JobFailed(f"{name} ended with status {process.returncode}: {self.last_words(name)}")

    def last_words(self, name):
        try:
            with open(self.log_path(name), errors="replace") as log:
                lines = [line.strip() for line in log if line.strip()]
        except OSError:
            lines = []
        return f"{lines[-1] if lines else 'it printed nothing'} (log: {self.log_path(name)})"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for _, process in self.processes:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except OSError:
                pass
            process.wait()


def last_row(path):
    """The newest complete row of a report, or None."""
    try:
        with open(path, newline="") as file:
            rows = [row for row in csv.DictReader(file) if row.get("accuracy")]
        return rows[-1] if rows else None
    except (OSError, csv.Error):
        return None


def read_result(path):
    """The report of a finished run, or None."""
    try:
        with open(path) as file:
            result = json.load(file)
        return result if result.get("finished") else None
    except (OSError, ValueError):
        return None


def run_here(programs, shards, workers, trainer_arguments, log_directory, seconds, watch=None, environment=None):
    """Runs the job through `weft run`, on loopback."""
    words = [programs.weft, "run", "-s", str(shards), "-n", str(workers), "--log-dir", log_directory, "--", programs.trainer]
    with Group(log_directory) as group:
        group.start("run", words + trainer_arguments, environment)
        group.wait(seconds, watch)


def wait_for_port_file(path, group, seconds=20):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            with open(path) as file:
                for line in file:
                    if line.startswith("coordinator="):
                        return line.strip().split("=", 1)[1]
        except OSError:
            pass
        for name, process in group.processes:
            if process.poll() is not None:
                raise JobFailed(f"{name} ended with status {process.returncode}: {group.last_words(name)}")
        time.sleep(0.05)
    raise JobFailed(f"shard0 has not written {path} after {seconds} s: {group.last_words('shard0')}")


def start_by_hand(programs, group, shards, workers, worker_command, network=None, environment=None, http=False, own=None,
                  options=()):
    """Starts the job process by process: shard0 (with the coordinator), the other shards, worker0 ... On loopback,
    or each in its namespace of `network`, where listeners require a job secret. `worker_command`: a list, or a
    function of the rank that returns one. `http`: each shard serves HTTP on a free port.
    `own`: variables of single processes, {"shard0": {...}}. `options`: of the coordinator."""
    job = os.path.basename(os.path.abspath(group.log_directory))
    port_file = os.path.join(group.log_directory, "ports")
    if os.path.exists(port_file):
        os.unlink(port_file)
    common = {"WEFT_JOB": job, **(environment or {})}
    if network:
        from netns import DEVICE

        secret_file = os.path.join(group.log_directory, "secret")
        with open(os.open(secret_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(secrets.token_hex(16))
        common.update({"WEFT_SECRET_FILE": secret_file, "WEFT_TRANSPORT_DEVICES": DEVICE})

    def start(node, words, extra=None):
        return group.start(node, network.command(node, words) if network else words, {**common, **(extra or {}), **(own or {}).get(node, {})})

    coordinator = None
    for index in range(shards):
        node = f"shard{index}"
        words = [programs.weftd, "--job", job, "--index", str(index), "--listen", network.address(node) if network else "127.0.0.1"]
        if index == 0:
            words += ["--workers", str(workers), "--shards", str(shards), "--port-file", port_file, *options]
        else:
            words += ["--coordinator", coordinator]
        if http:
            words += ["--http-port", "0"]
        start(node, words)
        if index == 0:
            coordinator = wait_for_port_file(port_file, group)
    for rank in range(workers):
        words = worker_command(rank) if callable(worker_command) else worker_command
        start(f"worker{rank}", words, {"WEFT_COORDINATOR": coordinator, "WEFT_RANK": str(rank)})


def run_in_network(programs, network, shards, workers, trainer_arguments, log_directory, seconds, watch=None):
    with Group(log_directory) as group:
        start_by_hand(programs, group, shards, workers, [programs.trainer] + trainer_arguments, network)
        group.wait(seconds, watch)
