#!/usr/bin/env python3
"""A third shard joins a running job of two over links with a rate; root.

  tools/bench/copies/third_shard.py --build build --rate 200mbit --rounds 3

Each process has a network namespace of its own, whose link has the rate in both directions. Job A begins with two shards, and a
third one joins while it trains. Job B has three shards from the start. Both have copies and four workers (tests/client/counting.c),
which check every number of every step. The table has the time of a step of job A before the third shard joins, of job A from 30 s
after that, and of job B; the ratio is the second over the third. The seconds are those until the slots were even.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

TOOLS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(TOOLS, "dev"))
import jobs  # noqa: E402
import netns  # noqa: E402

SHARDS, WORKERS, SETTLE = 3, 4, 30.0
NODES = [f"shard{i}" for i in range(SHARDS)] + [f"worker{i}" for i in range(WORKERS)]
ENVIRONMENT = {"WEFT_SERVER_COPIES": "1", "WEFT_TRANSPORT_BACKEND": "tcp"}
STEP = re.compile(r"^step (\d+)$", re.MULTILINE)
END = re.compile(r"^steps \d+ wrong 0 ", re.MULTILINE)


class Hosts(netns.Placement):
    """Each process has the name of its namespace as its host: a copy is on another host than its original."""

    def command(self, process, words):
        return super().command(process, ["unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', process, *words])


class Job:
    def __init__(self, arguments, network, folder, name, shards):
        self.programs = jobs.Programs(os.path.abspath(arguments.build))
        self.hosts = Hosts(network, {node: node for node in NODES})
        self.group = jobs.Group(os.path.join(folder, name))
        self.stop_file = os.path.join(folder, name + ".stop")
        counting = os.path.join(os.path.abspath(arguments.build), "tests", "client", "counting")
        jobs.start_by_hand(self.programs, self.group, shards, WORKERS, [counting, self.stop_file], self.hosts, ENVIRONMENT)
        with open(os.path.join(self.group.log_directory, "ports"), encoding="utf-8") as file:
            coordinator = re.search(r"^coordinator=(\S+)$", file.read(), re.MULTILINE)[1]
        self.names = {"WEFT_JOB": name, "WEFT_COORDINATOR": coordinator, "WEFT_TRANSPORT_DEVICES": netns.DEVICE,
                      "WEFT_SECRET_FILE": os.path.join(self.group.log_directory, "secret")}

    def log(self, name):
        with open(self.group.log_path(name), encoding="utf-8") as file:
            return file.read()

    def step(self):
        """The last step that rank 0 has printed: every twentieth."""
        for name, process in self.group.processes:
            if process.poll() is not None:
                raise jobs.JobFailed(f"{name} ended with status {process.returncode}: {self.group.last_words(name)}")
        return max([int(number) for number in STEP.findall(self.log("worker0"))] or [0])

    def next_print(self):
        """Waits until rank 0 prints a step: that step, and the time."""
        before = now = self.step()
        while now == before:
            time.sleep(0.005)
            now = self.step()
        return now, time.monotonic()

    def step_seconds(self, seconds):
        """Mean over the steps of at least so many seconds."""
        first, began = self.next_print()
        last, ended = self.next_print()
        while ended - began < seconds:
            last, ended = self.next_print()
        return (ended - began) / (last - first)

    def slots(self):
        words = [self.programs.weft, "status", "--json", "--secret-file", self.names["WEFT_SECRET_FILE"]]
        done = subprocess.run(self.hosts.command("shard0", words), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=20, check=False,
                              env={**os.environ, **self.names})
        return json.loads(done.stdout)["slots"] if done.returncode == 0 else {}

    def join(self):
        """A third shard joins; returns the seconds until the slots were even."""
        words = [self.programs.weftd, "--job", self.names["WEFT_JOB"], "--coordinator", self.names["WEFT_COORDINATOR"], "--join",
                 "--listen", self.hosts.address("shard2")]
        began = time.monotonic()
        self.group.start("shard2", self.hosts.command("shard2", words), {**ENVIRONMENT, **self.names})
        moved = 0
        while time.monotonic() - began < 300:
            slots = self.slots()
            moved = max(moved, slots.get("moved_bytes", 0))
            if moved and slots.get("rebalancing") is False:
                return time.monotonic() - began
            self.step()
            time.sleep(0.2)
        raise jobs.JobFailed("the slots are not even after 300 s")

    def end(self):
        open(self.stop_file, "w", encoding="utf-8").close()
        self.group.wait(120)
        for rank in range(WORKERS):
            if not END.search(self.log(f"worker{rank}")):
                raise jobs.JobFailed(f"wrong numbers: {self.group.last_words(f'worker{rank}')}")


def run(job, measured):
    """Ends the processes in any case."""
    with job.group:
        result = measured(job)
        job.end()
    return result


def grow(job, seconds):
    before = job.step_seconds(seconds)
    began = time.monotonic()
    even = job.join()
    time.sleep(max(0.0, began + SETTLE - time.monotonic()))
    return before, job.step_seconds(seconds), even


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--rate", default="200mbit", help="of each link (default: 200mbit)")
    parser.add_argument("--seconds", type=float, default=20, help="of a measurement (default: 20)")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    reason = netns.allowed()
    if reason:
        sys.exit(f"no network namespaces: {reason}")
    ratios = []
    print("| two shards (ms) | with a third (ms) | three from the start (ms) | ratio | even after (s) |\n|---:|---:|---:|---:|---:|", flush=True)
    with tempfile.TemporaryDirectory() as folder, netns.Network(NODES, arguments.rate) as network:
        for number in range(arguments.rounds):
            before, after, even = run(Job(arguments, network, folder, f"grown{number}", 2), lambda job: grow(job, arguments.seconds))
            fresh = run(Job(arguments, network, folder, f"fresh{number}", 3), lambda job: job.step_seconds(arguments.seconds))
            ratios.append(after / fresh)
            print(f"| {before * 1e3:.1f} | {after * 1e3:.1f} | {fresh * 1e3:.1f} | {ratios[-1]:.3f} | {even:.1f} |", flush=True)
    print(f"median of the ratios: {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
