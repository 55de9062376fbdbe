"""test_chaos.py - jobs with copies on four hosts, whose shards and links fail at random moments.

    host a: shard 0 with the coordinator, rank 0      host b: shard 3, rank 1
    host c: shard 1                                   host d: shard 2

The hosts are network namespaces. The workers (tests/client/counting.c; in two of three jobs counting_clocks.c, with
consistency asp and ssp) push whole numbers and check each result after each step: none is lost, none is counted twice. A job loses up to three of its shards, one after another. Before each
loss all slots have copies again. Between the losses links are slow and processes stop for a moment. The seed and the
number of the job name this schedule, which is printed; only the moments depend on the machine. By hand, for an hour:

    WEFT_BUILD=build python3 tests/system/test_chaos.py --seconds 3600 --seed 0        # 0: draws a seed
    WEFT_BUILD=build python3 tests/system/test_chaos.py --seconds 1 --seed S --job N    # job N of seed S again
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time

import harness
import jobs
import netns
from counting_job import CLOCKS, COUNTING, CountingTest

HOSTS = {"shard0": "a", "worker0": "a", "worker1": "b", "shard3": "b", "shard1": "c", "shard2": "d"}
WORKERS = ("worker0", "worker1")
ENVIRONMENT = {"WEFT_SERVER_COPIES": "1", "WEFT_SERVER_HEARTBEAT": "3s", "WEFT_TRANSPORT_BACKEND": "tcp"}
PROGRAMS = ([COUNTING], [CLOCKS, "asp"], [CLOCKS, "ssp:2"])  # of jobs 1, 2, 3, and so on
RATE = "1gbit"
STEPS_BETWEEN = 20
WAIT_SECONDS = 60

SETTINGS = argparse.Namespace(seconds=1.0, seed=1, job=1)


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
        self.number = SETTINGS.job
        self.jobs, self.losses, self.all_steps, self.longest_ms = 0, 0, 0, []

    # ---- one job ----

    def schedule(self):
        """Events of this job: (method, its arguments). The last one is a loss."""
        draw, events, left = random.Random(f"{self.seed} {self.number}"), [], ["shard1", "shard2", "shard3"]
        for _ in range(draw.choice([1, 2, 2, 3])):
            for _ in range(draw.randrange(3)):
                if draw.random() < 0.5:
                    events.append((self.slow_link, draw.choice("abcd"), draw.choice(["20mbit", "50mbit", "100mbit"]), draw.uniform(0, 0.5)))
                else:
                    events.append((self.short_stop, draw.choice(["shard0", *left, *WORKERS]), draw.uniform(0, 0.2)))
            name = draw.choice(left)
            left.remove(name)
            # the host of shard 3 has a rank, whose loss would end the job
            how = draw.choice([self.killed, self.stopped] if name == "shard3" else [self.killed, self.stopped, self.cut_off])
            events.append((self.lose_shard, name, how, draw.random() < 0.5, draw.uniform(0, 0.3)))
        return events

    def start(self):
        self.job = self.group(f"job{self.number}")
        self.groups.remove(self.job)
        self.groups.insert(0, self.job)
        self.stop_file = f"stop{self.number}"
        self.lost = 0
        program, *words = PROGRAMS[(self.number - 1) % len(PROGRAMS)]
        jobs.start_by_hand(harness.PROGRAMS, self.job, 4, 2, [program, self.path(self.stop_file), *words], Hosts(self.network, HOSTS),
                           ENVIRONMENT)
        self.wait_for_steps(1)

    def wait_for_steps(self, more):
        """Waits until each rank has completed `more` steps and more."""
        before = {worker: self.steps(self.job, worker) for worker in WORKERS}
        self.wait_for(f"{more} further steps of each rank",
                      lambda: all(self.steps(self.job, worker) >= at + more for worker, at in before.items()), self.job, WAIT_SECONDS)

    def all_have_copies(self):
        """What `weft status` on the coordinator's host shows of the slots."""
        words = [harness.PROGRAMS.weft, "status", "--json", "--secret-file", os.path.join(self.job.log_directory, "secret")]
        answer = subprocess.run(self.network.command("a", words), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=20,
                                env={**os.environ, **self.job_variables(self.job)})
        return answer.returncode == 0 and json.loads(answer.stdout)["slots"]["without_copy"] == 0

    # ---- events ----

    def slow_link(self, host, rate, seconds):
        self.network.limit(host, rate)
        time.sleep(seconds)  # the length of an event; no check depends on it
        self.network.limit(host, RATE)
        return f"link of {host} at {rate}"

    def short_stop(self, name, seconds):
        """Below the heartbeat: no shard is lost."""
        process = dict(self.job.processes)[name]
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(process.pid, signal.SIGCONT)
        return f"short stop of {name}"

    def lose_shard(self, name, how, is_killed_after, seconds):
        self.wait_for("copies of all slots", self.all_have_copies, self.job, WAIT_SECONDS)
        time.sleep(seconds)
        process = dict(self.job.processes)[name]
        self.job.processes = [(other, at) for other, at in self.job.processes if at is not process]
        self.addCleanup(self.reap, process)
        self.lost += 1
        how(name, process, is_killed_after)
        self.assertIsNotNone(harness.ends([(name, process)], WAIT_SECONDS)[name], f"{name} does not end")
        self.losses += 1
        return f"{how.__name__} {name}"

    def killed(self, name, process, is_killed_after):
        del name, is_killed_after
        harness.kill(process)
        self.wait_for_loss()

    def stopped(self, name, process, is_killed_after):
        """Also serves no worker when it continues: it ends."""
        del name, is_killed_after
        os.kill(process.pid, signal.SIGSTOP)
        self.wait_for_loss()
        os.kill(process.pid, signal.SIGCONT)

    def cut_off(self, name, process, is_killed_after):
        self.network.connect(HOSTS[name], False)
        self.wait_for_loss()
        self.network.connect(HOSTS[name], True)
        if is_killed_after:
            harness.kill(process)

    def wait_for_loss(self):
        """A shard is lost when the workers have its slots from others."""
        self.wait_for("the loss at both ranks", lambda: all(self.log(self.job, worker).count("copies lead its slots") >= self.lost
                                                            for worker in WORKERS), self.job, WAIT_SECONDS)
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
        for event, *arguments in self.schedule():
            events.append(event(*arguments))
            self.wait_for_steps(1)
        self.wait_for_steps(STEPS_BETWEEN)
        self.longest_ms += self.end(self.job, 2, self.stop_file, WAIT_SECONDS)
        self.all_steps += self.steps(self.job)
        print(f"job {self.number}, {max(0, deadline - time.monotonic()):.0f} s left: {'; '.join(events)}; longest step "
              f"{max(self.longest_ms[-2:])} ms", flush=True)
        self.number += 1
        self.jobs += 1

    def print_logs(self):
        for name in HOSTS:
            if os.path.exists(self.job.log_path(name)):
                print(f"---- {name}\n{self.log(self.job, name)[-2000:]}", file=sys.stderr)

    def test_chaos(self):
        print(f"seed {self.seed}", flush=True)
        deadline = time.monotonic() + SETTINGS.seconds
        try:
            while self.jobs == 0 or time.monotonic() < deadline:
                self.one_job(deadline)
        except BaseException:
            print(f"failed in job {self.number}: repeat it with --seed {self.seed} --job {self.number}", file=sys.stderr)
            self.print_logs()
            raise
        longest = sorted(self.longest_ms)
        print(f"{self.jobs} jobs, {self.losses} lost shards, {self.all_steps} steps, 0 wrong numbers; longest step of a rank: median "
              f"{longest[len(longest) // 2]} ms, largest {longest[-1]} ms")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--seconds", type=float, default=SETTINGS.seconds)
    parser.add_argument("--seed", type=int, default=SETTINGS.seed)
    parser.add_argument("--job", type=int, default=SETTINGS.job)
    SETTINGS, sys.argv[1:] = parser.parse_known_args()
    harness.main()
