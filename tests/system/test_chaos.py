"""test_chaos.py - jobs with copies on four hosts, whose shards and links fail at random moments.

    host a: shard 0 with the coordinator, rank 0      host b: rank 1
    host c: shard 1                                   host d: shard 2

The hosts are network namespaces. The workers (tests/client/counting.c) push whole numbers and check each result after
each step: none is lost, none is counted twice. A job survives one lost shard, so each job has some events that cost
no shard, then one that does, and ends in order. By hand, for an hour:

    WEFT_BUILD=build python3 tests/system/test_chaos.py --seconds 3600 --seed 0        # 0: draws a seed
"""

import argparse
import os
import random
import signal
import sys
import time

import harness
import jobs
import netns
from counting_job import COUNTING, CountingTest

HOSTS = {"shard0": "a", "worker0": "a", "worker1": "b", "shard1": "c", "shard2": "d"}
ENVIRONMENT = {"WEFT_SERVER_COPIES": "1", "WEFT_SERVER_HEARTBEAT": "3s", "WEFT_TRANSPORT_BACKEND": "tcp"}
RATE = "1gbit"
STEPS_BETWEEN = 20
WAIT_SECONDS = 60

SETTINGS = argparse.Namespace(seconds=5.0, seed=1)


class Hosts(netns.Placement):
    """Each process has the name of its host, too: a copy is on another host than its original."""

    def command(self, process, words):
        named = ["unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', self.node_of[process], *words]
        return super().command(process, named)


class Chaos(CountingTest):
    def setUp(self):
        super().setUp()
        reason = netns.allowed()
        if reason:
            self.skipTest(f"no network namespaces: {reason}")
        self.network = netns.Network(["a", "b", "c", "d"], RATE)
        self.groups.append(self.network)  # closed with the test, after the processes
        self.network.__enter__()
        self.seed = SETTINGS.seed or random.SystemRandom().randrange(1, 1 << 32)
        self.random = random.Random(self.seed)
        self.count, self.longest_ms = 0, []

    # ---- one job ----

    def start(self):
        self.count += 1
        self.job = self.group(f"job{self.count}")
        self.groups.remove(self.job)
        self.groups.insert(0, self.job)
        self.stop_file = f"stop{self.count}"
        jobs.start_by_hand(harness.PROGRAMS, self.job, 3, 2, [COUNTING, self.path(self.stop_file)], Hosts(self.network, HOSTS), ENVIRONMENT)
        self.wait_for_steps(1)

    def wait_for_steps(self, more):
        """Waits until each rank has completed `more` steps and more."""
        before = {worker: self.steps(self.job, worker) for worker in ("worker0", "worker1")}
        self.wait_for(f"{more} further steps of each rank",
                      lambda: all(self.steps(self.job, worker) >= at + more for worker, at in before.items()), self.job, WAIT_SECONDS)

    # ---- events ----

    def pause(self, most):
        time.sleep(self.random.uniform(0, most))  # the moment of an event; no check depends on it

    def slow_link(self):
        host, rate = self.random.choice("abcd"), self.random.choice(["20mbit", "50mbit", "100mbit"])
        self.network.limit(host, rate)
        self.pause(0.5)
        self.network.limit(host, RATE)
        return f"link of {host} at {rate}"

    def short_stop(self):
        """Below the heartbeat: no shard is lost."""
        name = self.random.choice(["shard0", "shard1", "shard2", "worker0", "worker1"])
        process = dict(self.job.processes)[name]
        os.kill(process.pid, signal.SIGSTOP)
        self.pause(0.2)
        os.kill(process.pid, signal.SIGCONT)
        return f"short stop of {name}"

    def lose_shard(self):
        name = self.random.choice(["shard1", "shard2"])
        how = self.random.choice([self.killed, self.stopped, self.cut_off])
        process = dict(self.job.processes)[name]
        self.job.processes = [(other, at) for other, at in self.job.processes if at is not process]
        self.addCleanup(self.reap, process)
        how(name, process)
        self.assertIsNotNone(harness.ends([(name, process)], WAIT_SECONDS)[name], f"{name} does not end")
        return f"{how.__name__} {name}"

    def killed(self, name, process):
        del name
        harness.kill(process)
        self.wait_for_steps(STEPS_BETWEEN)

    def stopped(self, name, process):
        """Also serves no worker when it continues: it ends."""
        del name
        os.kill(process.pid, signal.SIGSTOP)
        self.wait_for_loss()
        os.kill(process.pid, signal.SIGCONT)

    def cut_off(self, name, process):
        self.network.connect(HOSTS[name], False)
        self.wait_for_loss()
        self.network.connect(HOSTS[name], True)
        if self.random.random() < 0.5:
            harness.kill(process)

    def wait_for_loss(self):
        """A silent shard is lost when the workers have its slots from others."""
        self.wait_for("the loss at both ranks", lambda: all("copies lead its slots" in self.log(self.job, worker)
                                                            for worker in ("worker0", "worker1")), self.job, WAIT_SECONDS)
        self.wait_for_steps(STEPS_BETWEEN)

    @staticmethod
    def reap(process):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    # ---- the test ----

    def one_job(self, deadline):
        self.start()
        events = []
        for _ in range(self.random.randrange(3)):
            self.pause(0.3)
            events.append(self.random.choice([self.slow_link, self.short_stop])())
            self.wait_for_steps(1)
        self.pause(0.3)
        events.append(self.lose_shard())
        self.wait_for_steps(STEPS_BETWEEN)
        self.longest_ms += self.end(self.job, 2, self.stop_file, WAIT_SECONDS)
        print(f"job {self.count}, {max(0, deadline - time.monotonic()):.0f} s left: {'; '.join(events)}; longest step "
              f"{max(self.longest_ms[-2:])} ms", flush=True)

    def print_logs(self):
        for name in HOSTS:
            if os.path.exists(self.job.log_path(name)):
                print(f"---- {name}\n{self.log(self.job, name)[-2000:]}", file=sys.stderr)

    def test_chaos(self):
        print(f"seed {self.seed}", flush=True)
        deadline = time.monotonic() + SETTINGS.seconds
        try:
            while self.count == 0 or time.monotonic() < deadline:
                self.one_job(deadline)
        except BaseException:
            print(f"failed in job {self.count}: repeat it with --seed {self.seed}", file=sys.stderr)
            self.print_logs()
            raise
        longest = sorted(self.longest_ms)
        print(f"{self.count} jobs, each with a lost shard; longest step of a rank: median {longest[len(longest) // 2]} ms, "
              f"largest {longest[-1]} ms")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--seconds", type=float, default=SETTINGS.seconds)
    parser.add_argument("--seed", type=int, default=SETTINGS.seed)
    SETTINGS, sys.argv[1:] = parser.parse_known_args()
    harness.main()
