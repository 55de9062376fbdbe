"""test_failover.py - shards with copies: a killed shard ends no job, and no number is lost or counted twice.

The workers (tests/client/counting.c, with ssp and asp counting_clocks.c) push whole numbers and check each result.
With codecs and clip_norm (tests/client/coded_steps.c) they print the bits, which are those of an undisturbed job."""

import json
import os
import re
import signal
import subprocess
import urllib.request

import harness
import jobs
import netns
from counting_job import CLOCKS, COUNTING, CountingTest

CODED = os.path.join(harness.BUILD, "tests", "client", "coded_steps")
COPIES = {"WEFT_SERVER_COPIES": "1", "WEFT_SERVER_COPIES_ON_ONE_HOST": "yes"}


class Failover(CountingTest):
    def start(self, shards, workers, environment, program=COUNTING, *words):
        group = self.group()
        jobs.start_by_hand(harness.PROGRAMS, group, shards, workers, [program, self.path("stop"), *words], environment=environment, http=True)
        self.wait_for("the first steps", lambda: self.steps(group) > 0, group, 40)
        return group

    def kill_shard(self, group, number):
        """Kills it in the middle of push_pulls, and waits until the workers have continued."""
        shard = self.drop(group, f"shard{number}")
        harness.kill(shard)
        shard.wait()
        at = self.steps(group)
        self.wait_for(f"steps without shard {number}", lambda: self.steps(group) >= at + 20, group, 30)

    def check(self, transport):
        group = self.start(3, 2, {**COPIES, "WEFT_TRANSPORT_BACKEND": transport})
        self.kill_shard(group, 2)
        self.end(group, 2)
        self.assert_nothing_left(self.directory)

    def test_tcp(self):
        self.check("tcp")

    def test_shm(self):
        self.check("shm")

    def check_clocks(self, consistency, disturb):
        """Each push is applied as it arrives, and once, although the leader of some chunks is lost."""
        group = self.start(4, 2, {**COPIES, "WEFT_TRANSPORT_BACKEND": "tcp"}, CLOCKS, consistency)
        disturb(group)
        self.end(group, 2)
        self.assert_nothing_left(self.directory)

    def test_asp(self):
        self.check_clocks("asp", lambda group: self.kill_shard(group, 2))

    def test_ssp(self):
        """A loss, copies made again, a shard that leaves, and another loss."""
        self.check_clocks("ssp:2", self.lose_two)

    def bits(self, group, workers):
        """{step: hash} of each worker; they are equal in one job."""
        found = [dict(re.findall(r"^bits (\d+) ([0-9a-f]{16})$", self.log(group, f"worker{rank}"), re.MULTILINE)) for rank in range(workers)]
        self.assertTrue(found[0])
        self.assertTrue(all(one == found[0] for one in found), found)
        return found[0]

    def check_bits(self, disturb, *words):
        """A job with losses has the bits of one without copies. disturb(group): loses shards of four."""
        group = self.start(4, 2, {**COPIES, "WEFT_TRANSPORT_BACKEND": "tcp"}, CODED, "0", *words)
        disturb(group)
        open(self.path("stop"), "w").close()
        group.wait(30)
        disturbed = self.bits(group, 2)
        steps = max(int(step) for step in disturbed)
        os.remove(self.path("stop"))
        calm = self.group("calm")
        jobs.start_by_hand(harness.PROGRAMS, calm, 1, 2, [CODED, self.path("stop"), str(steps), *words], environment={})
        calm.wait(60)
        self.assertEqual(self.bits(calm, 2), disturbed)
        self.assert_nothing_left(self.directory)

    def lose_two(self, group):
        self.kill_shard(group, 3)
        self.wait_for("copies of all slots", lambda: self.slots(group).get("without_copy") == 0, group, 60)
        self.assertGreater(self.slots(group)["moved_bytes"], 0)
        self.wait_for("the metric", lambda: self.shows(group, r"^weft_job_slots_without_copy\{.*\} 0$"), group)
        self.drain(group, 2)
        self.kill_shard(group, 1)

    def test_codecs(self):
        """int8 in chunks, sign, top-k with a residual at the shard, PowerSGD, random-k, bf16 and f16, each with an
        optimizer: a loss, copies made again, a shard that leaves, and another loss change no bit."""
        self.check_bits(self.lose_two)

    def test_clip_norm(self):
        """Dense tensors, clipped by the norm of each step."""
        self.check_bits(lambda group: self.kill_shard(group, 2), "clip")

    def shows(self, group, pattern):
        with open(os.path.join(group.log_directory, "ports"), encoding="utf-8") as file:
            address = re.search(r"^http=(\S+)$", file.read(), re.MULTILINE)[1]
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
            return re.search(pattern, answer.read().decode(), re.MULTILINE)

    def check_metrics(self, group):
        """The loss has interrupted an operation of one rank at least, and the shards have replicated steps."""
        self.wait_for("the loss", lambda: self.shows(group, r"^weft_failover_seconds_count\{.*\} [12]$"), group)
        self.wait_for("copies", lambda: self.shows(group, r"^weft_job_slots_without_copy\{.*\} 0$"), group, 60)
        self.assertGreater(self.slots(group)["moved_bytes"], 0)
        self.assertTrue(self.shows(group, r"^weft_shard_replicate_seconds_count\{.*\} [1-9]"))

    def test_a_stopped_shard_that_continues(self):
        """The coordinator abandons it after its silence. When it continues it serves no worker, and ends."""
        group = self.start(3, 2, {**COPIES, "WEFT_SERVER_HEARTBEAT": "1s", "WEFT_CLIENT_REPORT_PERIOD": "200ms"})
        shard = dict(group.processes)["shard2"]
        os.kill(shard.pid, signal.SIGSTOP)
        at = self.steps(group)
        self.wait_for("steps without shard 2", lambda: self.steps(group) >= at + 20, group, 30)
        self.check_metrics(group)
        os.kill(shard.pid, signal.SIGCONT)
        group.processes = [(name, process) for name, process in group.processes if process is not shard]
        self.assertIsNotNone(harness.ends([("shard2", shard)], 15)["shard2"])
        self.assertEqual(shard.returncode, 1)
        self.wait_for("steps after it has ended", lambda: self.steps(group) >= at + 20, group, 30)
        self.end(group, 2)

    def test_under_weft_run(self):
        group = self.group("launcher")
        words = [harness.PROGRAMS.weft, "run", "-s", "3", "-n", "2", "--log-dir", self.path("launcher"), "--", COUNTING, self.path("stop")]
        run = group.start("run", words, COPIES)
        os.symlink("rank0.log", group.log_path("worker0"))
        os.symlink("rank1.log", group.log_path("worker1"))
        self.wait_for("the first steps", lambda: self.steps(group) > 0, group, 40)
        shards = subprocess.run(["pgrep", "-P", str(run.pid), "-x", "weftd"], stdout=subprocess.PIPE, text=True).stdout.split()
        os.kill(int(shards[2]), signal.SIGKILL)
        at = self.steps(group)
        self.wait_for("steps without a shard", lambda: self.steps(group) >= at + 20, group, 30)
        self.end(group, 2)
        self.assertIn("the job continues with the copies of its chunks", self.log(group, "run"))

    def bench(self, *words, **environment):
        return subprocess.run([harness.PROGRAMS.weft, "bench", "failover", "--bytes", "100K", "--steps", "4", *words],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60,
                              env={**os.environ, "TMPDIR": self.directory, **environment})

    def test_bench(self):
        done = self.bench("-n", "2", "-s", "3", "--kills", "2", "--json")
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        *kills, summary = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual([row["kill"] for row in kills], [1, 2])
        for row in kills:
            self.assertIn(row["shard"], (1, 2))
            self.assertEqual((row["wrong"], row["steps"], row["workers"], row["shards"]), (0, 12, 2, 3))
            self.assertGreater(row["next_step_ms"], 0)
        self.assertEqual(summary["next_step_ms"]["max"], max(row["next_step_ms"] for row in kills))

    def test_bench_stop(self):
        done = self.bench("-n", "2", "-s", "2", "--kills", "1", "--how", "stop", WEFT_SERVER_HEARTBEAT="1s")
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        self.assertRegex(done.stdout, r"(?m)^next step +1 ")
        self.assertEqual(len(done.stdout.splitlines()), 6)
        self.assert_nothing_left(self.directory)

    def test_bench_push_pull_copies(self):
        """What the copies add is one sum, of as many contributions as workers."""
        words = [harness.PROGRAMS.weft, "bench", "push_pull", "-n", "4", "--copies", "0,1", "-b", "512K", "-e", "512K", "--iters", "2",
                 "--warmup", "1", "--transport", "tcp", "--json"]
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60,
                              env={**os.environ, "TMPDIR": self.directory})
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        plain, copied = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual([(row["copies"], row["shards"], row["wrong"]) for row in (plain, copied)], [(0, 2, 0), (1, 2, 0)])
        self.assertAlmostEqual(plain["shard_bytes_per_step"] / (4 * plain["bytes"]), 1, delta=0.02)
        self.assertAlmostEqual(copied["extra_bytes_share"], 1 / 4, delta=0.02 / 4)

    def test_bench_kills_no_shard_without_copies(self):
        words = [harness.PROGRAMS.weft, "bench", "failover", "--bytes", "100K", "--steps", "4"]
        done = self.run_job(2, 2, words)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout, r"the loss of a shard would end the job \(2 shards, 0 copies")

    def test_copies_are_made_again(self):
        """After a loss each slot gets a copy on the shards that are left, so that a second loss ends no job."""
        group = self.start(4, 2, COPIES)
        for shard in (3, 2):
            self.kill_shard(group, shard)
            self.wait_for("copies of all slots", lambda: self.slots(group).get("without_copy") == 0, group, 60)
        self.assertGreater(self.slots(group)["moved_bytes"], 0)
        self.end(group, 2)

    def wait_for_even_shards(self, group):
        self.wait_for("even shards", lambda: self.slots(group).get("rebalancing") is False, group, 60)
        for key in ("weights_bytes", "copied_bytes"):
            rows = [row[key] for row in self.shards(group).values() if row["state"] == "ready"]
            self.assertLessEqual(max(rows) - min(rows), 256 << 10, f"{key}: more than a slot apart")
        self.assertEqual(self.slots(group)["without_copy"], 0)

    def test_a_third_shard(self):
        """It gets its share while the workers train, and leads it when another shard is lost."""
        group = self.start(2, 2, COPIES)
        self.join(group, 2, COPIES)
        self.wait_for_even_shards(group)
        self.kill_shard(group, 1)
        self.end(group, 2)

    def test_operated(self):
        """`weft drain` and `weft rebalance`, and their refusals."""
        group = self.start(3, 2, COPIES)
        done = self.weft(group, "drain", "0")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"^weft drain: shard 0 \(.*\) cannot leave: its process has the coordinator")
        self.assertRegex(self.weft(group, "drain", "7").stderr, "has no shard 7")
        self.assertRegex(self.weft(group, "drain", self.shards(group)[1]["host"]).stderr, "3 shards are on host")
        done = self.weft(group, "drain", "1", "--json")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual([json.loads(done.stdout)[key] for key in ("shard", "state")], [1, "left"])
        shard = self.drop(group, "shard1")
        self.assertIsNotNone(harness.ends([("shard1", shard)], 30)["shard1"])
        self.assertEqual(shard.returncode, 0, self.log(group, "shard1"))
        done = self.weft(group, "rebalance", "--json")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(json.loads(done.stdout)["state"], "even")
        self.kill_shard(group, 2)
        self.assertRegex(self.weft(group, "drain", "2").stderr, "cannot leave: it is lost or has left")
        self.end(group, 2)

    def test_rebalance_by_load(self):
        """A shard on a slow link gets fewer bytes; the plan shows that before, and by bytes nothing would move."""
        reason = netns.allowed()
        if reason:
            self.skipTest(f"no network namespaces: {reason}")
        hosts = {"shard0": "a", "worker0": "a", "worker1": "b", "shard1": "b", "shard2": "c"}
        network = netns.Network(["a", "b", "c"], "1gbit")
        self.groups.append(network)  # closed with the test, after the processes
        network.__enter__()
        network.limit("c", "50mbit")
        group = self.group()
        self.groups.remove(group)
        self.groups.insert(0, group)
        jobs.start_by_hand(harness.PROGRAMS, group, 3, 2, [COUNTING, self.path("stop")], netns.Placement(network, hosts),
                           {**COPIES, "WEFT_TRANSPORT_BACKEND": "tcp", "WEFT_CLIENT_REPORT_PERIOD": "200ms"})
        secret = os.path.join(group.log_directory, "secret")

        def weft(*words):
            done = subprocess.run(network.command("a", [harness.PROGRAMS.weft, *words, "--json", "--secret-file", secret]), timeout=60,
                                  stdout=subprocess.PIPE, text=True, env={**os.environ, **self.job_variables(group)})
            return json.loads(done.stdout) if done.returncode == 0 else {}

        def led():
            return {row["index"]: row["weights_bytes"] for row in weft("status")["members"] if row["role"] == "shard"}

        def slow_shard_is_seen():
            speeds = weft("rebalance", "--plan", "--by", "load").get("speeds", [])
            return len(speeds) == 3 and speeds[2] <= 500 and min(speeds[:2]) > speeds[2]
        self.wait_for("the speed of the slow shard", slow_shard_is_seen, group, 40)
        before = led()
        plan = weft("rebalance", "--plan", "--by", "load")["moves"]
        self.assertTrue(any(move["from"] == 2 and move["leads"] for move in plan), plan)
        by_bytes = weft("rebalance", "--plan")["moves"]
        self.assertFalse(any(move["from"] == 2 and move["leads"] for move in by_bytes), by_bytes)
        self.assertEqual(led(), before, "a plan moves nothing")
        self.assertEqual(weft("rebalance", "--by", "load")["state"], "even")
        after = led()
        self.assertLess(after[2], before[2])
        self.assertLess(2 * after[2], min(after[0], after[1]))
        self.end(group, 2)

    def test_operated_without_copies(self):
        group = self.start(2, 2, {})
        for words in (("drain", "1"), ("rebalance",)):
            done = self.weft(group, *words)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertRegex(done.stderr, r"the job has no copies \(server.copies\)")
        job = self.job_variables(group)
        joins = subprocess.run([harness.PROGRAMS.weftd, "--join", "-c", job["WEFT_COORDINATOR"]], stderr=subprocess.PIPE, text=True,
                               timeout=30, env={**os.environ, **job})
        self.assertEqual(joins.returncode, 1)
        self.assertRegex(joins.stderr, "has no copies, so no chunk of it can move to another shard")
        self.end(group, 2)

    def test_drain(self):
        """After SIGTERM a shard leaves when its slots are on the others, and a loss then ends no job."""
        group = self.start(4, 2, COPIES)
        self.drain(group, 2)
        self.kill_shard(group, 3)
        self.end(group, 2)

    def test_the_last_shard_has_no_copies(self):
        """One shard is left: the status counts its slots, and the job continues."""
        group = self.start(2, 2, COPIES)
        self.kill_shard(group, 1)
        self.assertGreater(self.slots(group)["without_copy"], 0)
        self.assertTrue(self.shows(group, r"^weft_job_slots_without_copy\{.*\} [1-9]"))
        self.end(group, 2)


if __name__ == "__main__":
    harness.main()
