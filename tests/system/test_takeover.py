"""test_takeover.py - a job with server.store: another shard process coordinates when the coordinating one ends.

The workers (tests/client/counting.c) push whole numbers and check each result."""

import json
import os
import re
import signal
import subprocess
import urllib.request

import harness
import jobs
from counting_job import COUNTING, CountingTest

VERSION_1 = {"WEFT_JOB_WIRE_VERSION": "1"}
TOOK_OVER = "this process takes over at"
COMMITTED = "is committed"


class Takeover(CountingTest):
    def environment(self):
        return {"WEFT_SERVER_COPIES": "1", "WEFT_SERVER_COPIES_ON_ONE_HOST": "yes", "WEFT_SERVER_STORE": self.path("store")}

    def start(self, shards, workers, options=None, own=None, words=(), coordinator_words=(), http=False):
        group = self.group()
        jobs.start_by_hand(harness.PROGRAMS, group, shards, workers, [COUNTING, self.path("stop"), *words],
                           environment={**self.environment(), **(options or {})}, own=own, options=coordinator_words, http=http)
        self.wait_for("the first steps", lambda: self.steps(group) > 0, group, 40)
        return group

    def coordinators(self, group, shards):
        """Shards that have taken over, by the number of times."""
        return [self.log(group, f"shard{number}").count(TOOK_OVER) for number in range(shards)]

    def wait_for_takeover(self, group, shards, count=1):
        self.wait_for("another coordinator", lambda: sum(self.coordinators(group, shards)) == count, group, 30)
        at = self.steps(group)
        self.wait_for("steps with it", lambda: self.steps(group) >= at + 40, group, 30)

    def test_killed(self):
        """Shard 0 coordinates. Its chunks fail over, and the rest of the job continues with another coordinator, which makes
        the next snapshot."""
        folder = self.path("snapshots")
        group = self.start(3, 2, {"WEFT_SNAPSHOT_FOLDER": folder, "WEFT_SNAPSHOT_EVERY": "20 steps", "WEFT_LOG_LEVEL": "info"})
        self.wait_for("a snapshot", lambda: COMMITTED in self.log(group, "shard0"), group, 30)
        shard = self.drop(group, "shard0")
        harness.kill(shard)
        shard.wait()
        self.wait_for_takeover(group, 3)
        job = self.job_variables(group)
        self.assertEqual(self.status(group), {}, "an answer at the former address, without the store")
        for variables in (job, {"WEFT_JOB": job["WEFT_JOB"]}):
            done = subprocess.run([harness.PROGRAMS.weft, "status", "--json"], stdout=subprocess.PIPE, text=True, timeout=60,
                                  env={**os.environ, **variables, **self.environment()})
            self.assertGreater(json.loads(done.stdout)["reign"], 0)
        self.wait_for("a snapshot of the next coordinator",
                      lambda: any(COMMITTED in self.log(group, f"shard{number}") for number in (1, 2)), group, 30)
        self.end(group, 2)
        subprocess.run([harness.PROGRAMS.weft, "snapshot", "verify", folder], check=True, stdout=subprocess.DEVNULL, timeout=60)
        self.assert_nothing_left(self.directory)

    def test_stopped_and_continued(self):
        """Its lease ends. When it continues it decides nothing, and its shard, which was lost, ends."""
        group = self.start(3, 2)
        shard = self.drop(group, "shard0")
        os.kill(shard.pid, signal.SIGSTOP)
        self.wait_for_takeover(group, 3)
        os.kill(shard.pid, signal.SIGCONT)
        self.assertIsNotNone(harness.ends([("shard0", shard)], 15)["shard0"])
        self.assertIn("this process does not coordinate job", self.log(group, "shard0"))
        self.assertRegex(self.log(group, "shard0"), r"shard 0 .*counts as lost at the coordinator")
        self.end(group, 2)

    def test_stopped_and_resumed(self):
        """It continues before it counts as lost: its process is a shard, and its pages have no figures of the job."""
        group = self.start(3, 2, {"WEFT_SERVER_RESUME": "30s"}, http=True)
        with open(os.path.join(group.log_directory, "ports"), encoding="utf-8") as file:
            page = f"http://{re.search(r'(?m)^http=(.*)$', file.read())[1]}/metrics"

        def job_state():
            with urllib.request.urlopen(page, timeout=10) as answer:
                return "weft_job_state{" in answer.read().decode()
        self.assertTrue(job_state())
        shard = dict(group.processes)["shard0"]
        os.kill(shard.pid, signal.SIGSTOP)
        self.wait_for("another coordinator", lambda: sum(self.coordinators(group, 3)) == 1, group, 30)
        os.kill(shard.pid, signal.SIGCONT)
        self.wait_for("a page without the job", lambda: not job_state(), group, 30)
        with urllib.request.urlopen(page.replace("metrics", "status"), timeout=10) as answer:
            self.assertIsNone(json.load(answer)["coordinator"])
        self.wait_for_takeover(group, 3)
        self.end(group, 2)

    def test_a_shard_that_has_joined(self):
        """The next coordinator has it in its records: it leads its slots, and no number is lost."""
        group = self.start(3, 2)
        self.join(group, 3, self.environment())
        shard = self.drop(group, "shard0")
        harness.kill(shard)
        shard.wait()
        self.wait_for_takeover(group, 4)
        self.end(group, 2)

    def kill(self, group, name):
        process = self.drop(group, name)
        harness.kill(process)
        process.wait()

    def test_elastic(self):
        """A worker dies with the coordinator, another one after it; then a worker joins at the next coordinator."""
        group = self.start(3, 4, words=["elastic"], coordinator_words=["--min-workers", "1", "--max-workers", "4"])
        harness.kill(dict(group.processes)["worker3"])
        self.kill(group, "shard0")
        self.drop(group, "worker3").wait()
        self.wait_for_takeover(group, 3)
        self.wait_for("three ranks", lambda: all("3 ranks" in self.log(group, f"worker{rank}") for rank in range(3)), group, 30)
        self.kill(group, "worker1")
        self.wait_for("two ranks", lambda: all("2 ranks" in self.log(group, f"worker{rank}") for rank in (0, 2)), group, 30)
        address = re.search(TOOK_OVER + r" (\S+)", "".join(self.log(group, f"shard{number}") for number in range(3)))[1]
        group.start("worker4", [COUNTING, self.path("stop"), "elastic"],
                    {"WEFT_COORDINATOR": address, "WEFT_JOB": os.path.basename(os.path.abspath(group.log_directory))})
        self.wait_for("its first steps", lambda: self.steps(group, "worker4") > 0, group, 30)
        open(self.path("stop"), "w").close()
        group.wait(30)
        for rank in (0, 2, 4):
            self.assertRegex(self.log(group, f"worker{rank}"), r"(?m)^steps \d+ wrong 0 ")

    def test_a_shard_lost_before_the_job_begins(self):
        """The job waits for its second worker, and begins without the shard."""
        group = self.group()
        jobs.start_by_hand(harness.PROGRAMS, group, 3, 1, [COUNTING, self.path("stop")],
                           environment={**self.environment(), "WEFT_LOG_LEVEL": "info"}, options=["--workers", "2"])
        self.wait_for("three shards", lambda: all(f"shard {number} (" in self.log(group, "shard0") for number in range(3)), group, 30)
        self.kill(group, "shard1")
        self.wait_for("its loss", lambda: "the job begins without it" in self.log(group, "shard0"), group, 30)
        group.start("worker1", [COUNTING, self.path("stop")], {**self.job_variables(group), "WEFT_RANK": "1"})
        self.wait_for("the first steps", lambda: self.steps(group) > 0, group, 30)
        self.end(group, 2)

    def test_coordinator_lost_before_the_job_begins(self):
        """Three shards and a worker have joined. Another shard coordinates; the job begins without the lost one, with a worker
        that has joined again and one that starts with the former address."""
        group = self.group()
        jobs.start_by_hand(harness.PROGRAMS, group, 3, 1, [COUNTING, self.path("stop")],
                           environment={**self.environment(), "WEFT_LOG_LEVEL": "info"}, options=["--workers", "2"])
        joined = [*(f"shard {number} (" for number in range(3)), "rank 0 ("]
        self.wait_for("all that have started", lambda: all(who in self.log(group, "shard0") for who in joined), group, 30)
        self.kill(group, "shard0")
        group.start("worker1", [COUNTING, self.path("stop")], {**self.job_variables(group), **self.environment(), "WEFT_RANK": "1"})
        self.wait_for("the first steps", lambda: self.steps(group) > 0, group, 40)
        self.assertEqual(sum(self.coordinators(group, 3)), 1)
        self.assertIn("weft_init joins again at", self.log(group, "worker0"))
        self.end(group, 2)
        self.assert_nothing_left(self.directory)

    def test_under_weft_run(self):
        group = self.group("launcher")
        words = [harness.PROGRAMS.weft, "run", "-s", "3", "-n", "2", "--log-dir", self.path("launcher"), "--", COUNTING, self.path("stop")]
        run = group.start("run", words, self.environment())
        for rank in range(2):
            os.symlink(f"rank{rank}.log", group.log_path(f"worker{rank}"))
        self.wait_for("the first steps", lambda: self.steps(group) > 0, group, 40)
        shards = subprocess.run(["pgrep", "-P", str(run.pid), "-x", "weftd"], stdout=subprocess.PIPE, text=True).stdout.split()
        os.kill(int(shards[0]), signal.SIGKILL)
        self.wait_for_takeover(group, 3)
        self.end(group, 2)

    def test_a_worker_restarts_under_weft_run(self):
        """The coordinator is killed, then a worker: it is started again, and joins at the next coordinator."""
        group = self.group("launcher")
        words = [harness.PROGRAMS.weft, "run", "-s", "3", "-n", "3", "--min-workers", "1", "--restarts", "1", "--log-dir",
                 self.path("launcher"), "--", COUNTING, self.path("stop"), "elastic"]
        run = group.start("run", words, self.environment())
        for name, log in {"worker0": "rank0", "worker1": "rank1", "worker2": "rank2", "worker3": "rank2.again1"}.items():
            os.symlink(log + ".log", group.log_path(name))
        self.wait_for("the first steps", lambda: self.steps(group) > 0, group, 40)

        def children(program):
            found = subprocess.run(["pgrep", "-P", str(run.pid), "-x", program], stdout=subprocess.PIPE, text=True)
            return [int(pid) for pid in found.stdout.split()]
        os.kill(children("weftd")[0], signal.SIGKILL)
        self.wait_for_takeover(group, 3)
        os.kill(children("counting")[2], signal.SIGKILL)
        self.wait_for("steps of the worker that was started again",
                      lambda: os.path.exists(group.log_path("worker3")) and self.steps(group, "worker3") > 0, group, 40)
        open(self.path("stop"), "w").close()
        group.wait(30)  # status 0: the launcher has seen the loss of the worker that the job survived
        for rank in (0, 1, 3):
            self.assertRegex(self.log(group, f"worker{rank}"), r"(?m)^steps \d+ wrong 0 ")

    def assert_versions(self, group, job, members):
        status = self.status(group)
        self.assertEqual(status["wire_version"], job)
        found = {f"{member['role']}{member['index']}": member["wire_version"] for member in status["members"]}
        self.assertEqual(found, members)

    def test_upgrade(self):
        """Workers and shards 0 and 1 of wire version 1: shard 1 is drained, shard 0, which coordinates, is killed."""
        group = self.start(4, 2, own={name: VERSION_1 for name in ("shard0", "shard1", "worker0", "worker1")})
        # a coordinator of version 1 does not read the versions of others
        self.assert_versions(group, 1, {"worker0": 1, "worker1": 1, "shard0": 1, "shard1": 1, "shard2": 1, "shard3": 1})
        self.drain(group, 1)
        shard = self.drop(group, "shard0")
        harness.kill(shard)
        shard.wait()
        self.wait_for_takeover(group, 4)
        self.end(group, 2)
        self.assert_nothing_left(self.directory)

    def test_upgrade_of_coordinator_and_workers_first(self):
        """A process of version 1 takes over from one of version 2, which was upgraded first."""
        group = self.start(4, 2, own={name: VERSION_1 for name in ("shard1", "shard2", "shard3")})
        self.assert_versions(group, 1, {"worker0": 2, "worker1": 2, "shard0": 2, "shard1": 1, "shard2": 1, "shard3": 1})
        self.drain(group, 3)
        shard = self.drop(group, "shard0")
        harness.kill(shard)
        shard.wait()
        self.wait_for_takeover(group, 4)
        self.end(group, 2)
        self.assert_nothing_left(self.directory)

    def test_what_the_oldest_member_does_not_support(self):
        """A worker of version 2 names the shard of version 1, and workers of two versions are refused."""
        bench = [harness.PROGRAMS.weft, "bench", "push_pull", "-d", "bf16", "-b", "4K", "-e", "4K", "--iters", "1"]
        for old, name in (("shard1", r"shard 1 \(.*\)"), ("shard0", "the coordinator")):
            group = self.group("job-" + old)
            jobs.start_by_hand(harness.PROGRAMS, group, 2, 1, bench, own={old: VERSION_1})
            harness.ends(group.processes, 30)
            self.assertRegex(self.log(group, "worker0"), "has a 16-bit dtype in server mode, which needs wire version 2 and this job has "
                             f"version 1, because {name} spoke no newer one when it began")
        mixed = self.group("mixed")
        jobs.start_by_hand(harness.PROGRAMS, mixed, 1, 2, [COUNTING, self.path("stop")], own={"worker1": VERSION_1})
        self.wait_for("the refusal", lambda: "use one release of weft in all workers of a job" in
                      self.log(mixed, "worker0") + self.log(mixed, "worker1"), mixed)
        for _, process in mixed.processes:
            harness.kill(process)

    def test_elastic_job_of_an_old_shard(self):
        """The records of an elastic job need wire version 2: the job ends before it begins."""
        group = self.group()
        jobs.start_by_hand(harness.PROGRAMS, group, 2, 1, [COUNTING, self.path("stop"), "elastic"], environment=self.environment(),
                           own={"shard1": VERSION_1}, options=["--min-workers", "1"])
        harness.ends(group.processes, 30)
        self.assertRegex(self.log(group, "worker0"), r"server.store in a job whose workers may change needs wire version 2 and this job "
                         r"has version 1, because shard 1 \(.*\) spoke no newer one when it began")

    def test_what_a_store_does_not_support(self):
        for words, variables, sentence in (([], {"WEFT_SERVER_COPIES": "0"}, "server.store needs server.copies=1"),
                                           ([], {"WEFT_SERVER_RESUME": "0s"}, "server.store needs server.resume above 0")):
            done = subprocess.run([harness.PROGRAMS.weftd, "--workers", "2", "--shards", "2", *words], stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, timeout=60, env={**os.environ, **self.environment(), **variables})
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertIn(sentence, done.stdout)


if __name__ == "__main__":
    harness.main()
