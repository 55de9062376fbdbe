"""test_elastic.py - jobs that continue when workers are killed: the remaining workers repeat the failed step, with the bits that a
job of that size has from that state."""

import glob
import os
import random
import re
import signal
import subprocess
import time
from unittest import mock

import harness

ELASTIC = os.path.join(harness.BUILD, "tests", "client", "elastic")
FREED = os.path.join(harness.BUILD, "tests", "client", "freed")
SERVED = os.path.join(harness.BUILD, "tests", "client", "served")
EXAMPLES = os.path.join(harness.BUILD, "examples")
# Rank 1 kills itself once, when the file of rank 0 has a line that begins so.
DIES = 'if [ "$WEFT_RANK" = 1 ] && mkdir {mark} 2>/dev/null; then (until grep -q "^{line}" {file} 2>/dev/null; do sleep 0.01; done; kill -9 $$) & fi; exec {words}'
SERVED_LINE = re.compile(r"^ranks (\d+) steps (\d+) shrunk (\d+) earlier (\d+) hash ([0-9a-f]+)$", re.MULTILINE)
LINE = re.compile(r"^ranks (\d+) steps (\d+) shrunk (\d+) hash ([0-9a-f]+)$", re.MULTILINE)


class Elastic(harness.JobTest):
    def run_elastic(self, workers, workers_min, words, name="run"):
        return self.run_job_words(workers, workers_min, [ELASTIC] + [str(word) for word in words], name)

    def run_job_words(self, workers, workers_min, words, name="run", deadline_ms=60000, options=()):
        """Exit status, the logs of the workers, and the output of weft run."""
        command = [harness.PROGRAMS.weft, "run", "-n", str(workers), "--log-dir", self.path(name)]
        command += ["--min-workers", str(workers_min)] if workers_min else []
        command += options
        done = subprocess.run(command + ["--"] + words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, timeout=150, start_new_session=True, env={**os.environ, "WEFT_DEADLINE_MS": str(deadline_ms)})
        return done.returncode, self.logs(name, workers), done.stdout

    def logs(self, name, workers):
        text = ""
        for rank in range(workers):
            path = self.path(name, f"rank{rank}.log")
            if os.path.exists(path):
                with open(path, errors="replace") as file:
                    text += file.read()
        return text

    def results(self, text, ranks, shrunk=None):
        """The one hash of all survivors."""
        lines = LINE.findall(text)
        self.assertEqual(len(lines), ranks, text)
        for line in lines:
            self.assertEqual(int(line[0]), ranks, text)
            if shrunk is not None:
                self.assertEqual(int(line[2]), shrunk, text)
        self.assertEqual(len({line[3] for line in lines}), 1, text)
        return lines[0][3]

    def test_killed_in_a_step(self):
        for where in ("before", "middle", "after"):
            with self.subTest(where=where):
                os.makedirs(self.path("state-" + where))
                code, text, output = self.run_elastic(4, 3, [9, 2, 5, where, "save", self.path("state-" + where), 5], where)
                self.assertEqual(code, 0, text + output)
                with_loss = self.results(text, 3, 1)
                self.assertIn("rank 2 (", text)
                self.assertIn("run step 5 again", text)
                self.assertIn("the job continues without it", output)
                code, text, output = self.run_elastic(3, None, [9, "from", self.path("state-" + where, "state"), 5], "three-" + where)
                self.assertEqual(code, 0, text + output)
                self.assertEqual(self.results(text, 3, 0), with_loss)

    def test_one_after_the_other(self):
        code, text, output = self.run_elastic(4, 2, [10, 3, 4, "middle", 0, 7, "middle"])
        self.assertEqual(code, 0, text + output)
        self.results(text, 2, 2)

    def test_two_at_once(self):
        code, text, output = self.run_elastic(5, 2, [10, 1, 4, "middle", 3, 4, "after"])
        self.assertEqual(code, 0, text + output)
        self.results(text, 3)

    def test_killed_before_the_job_runs(self):
        """A worker that never joins: the others do not wait for it until the deadline."""
        code, text, output = self.run_job_words(2, 1, ["sh", "-c", f'[ $WEFT_RANK = 1 ] && kill -9 $$; exec {ELASTIC} 3'])
        self.assertEqual(code, 1, text + output)
        self.assertIn("rank 1", output)

    def test_stopped_in_a_step(self):
        """A stopped rank whose connections are open: the heartbeat detects it, and the job shrinks as after a death."""
        with mock.patch.dict(os.environ, {"WEFT_SERVER_HEARTBEAT": "3s"}):
            code, text, output = self.run_elastic(4, 3, [9, 2, 5, "stopped"])
        self.assertEqual(code, 0, text + output)
        self.results(text, 3, 1)
        self.assertIn("silent for 3 s", text + output)

    def test_too_few_are_left(self):
        code, text, output = self.run_elastic(3, 3, [10, 1, 4, "middle"])
        self.assertEqual(code, 1, text + output)
        self.assertIn("rank 1 (", text)
        self.assertFalse(LINE.findall(text))

    def test_without_steps(self):
        code, text, output = self.run_elastic(4, 2, ["plain", 1])
        self.assertEqual(code, 0, text + output)
        for rank in range(3):
            self.assertIn(f"plain: {rank} of 3", text + output)

    def test_groups_of_their_members(self):
        """A rank dies while the others make a group with it; those that are left make groups under their new ranks."""
        code, text, output = self.run_elastic(4, 2, ["created", 1])
        self.assertEqual(code, 0, text + output)
        for rank in range(3):
            self.assertIn(f"created: {rank} of 3", text + output)
        self.assertEqual((text + output).count("comm_create: rank 1 ("), 3, text + output)

    def test_what_codecs_owe(self):
        code, text, output = self.run_elastic(4, 2, ["coded", 1])
        self.assertEqual(code, 0, text + output)
        for rank in range(3):
            self.assertIn(f"coded: {rank} of 3", text + output)

    def test_delivery_open(self):
        """A rank is lost while results of its step are still arriving: the others lose the step, and run it again without it."""
        hashes = set()
        for where in ("before", "after"):
            code, text, output = self.run_elastic(4, 2, ["late", 1, where], f"late-{where}")
            self.assertEqual(code, 0, text + output)
            lines = re.findall(r"^late: (\d) of 3, shrunk 1, lost ([01]), hash ([0-9a-f]+)$", text, re.MULTILINE)
            self.assertEqual(sorted(int(line[0]) for line in lines), [0, 1, 2], text)
            if where == "before":
                self.assertEqual({line[1] for line in lines}, {"1"}, text)
            hashes |= {line[2] for line in lines}
        self.assertEqual(len(hashes), 1, hashes)

    def auto_codec(self, text, ranks):
        lines = re.findall(r"^auto: (\d+) of (\d+), hash ([0-9a-f]+)$", text, re.MULTILINE)
        self.assertEqual(sorted(int(line[0]) for line in lines), list(range(ranks)), text)
        self.assertEqual({int(line[1]) for line in lines}, {ranks}, text)
        self.assertEqual(len({line[2] for line in lines}), 1, text)

    def test_codec_auto(self):
        """A rank is lost, and in a second job restarted: the decisions of the remaining ranks are equal, and so are their results."""
        for killed in (2, 0):
            code, text, output = self.run_elastic(4, 2, ["auto", killed, 3], f"auto{killed}")
            self.assertEqual(code, 0, text + output)
            self.auto_codec(text, 3)
            name = f"auto-again{killed}"
            code, text, output = self.run_job_words(4, 2, [ELASTIC, "auto", str(killed), "4"], name, options=["--restarts", "1"])
            with open(self.path(name, f"rank{killed}.again1.log")) as file:
                text += file.read()
            self.assertEqual(code, 0, text + output)
            self.auto_codec(text, 4)

    def test_killed_in_a_free(self):
        """A rank dies inside weft_tensor_free: all others have freed the tensor or none has, and a new rank declares what is left."""
        for delay_us, mode, options in ((0, "reduce", []), (300, "reduce", ["--restarts", "1"]), (0, "server", ["-s", "2", "--restarts", "1"])):
            ranks = 4 if "--restarts" in options else 3
            name = f"freed-{delay_us}-{mode}"
            code, text, output = self.run_job_words(4, 1, [FREED, "2", str(delay_us), str(ranks), mode], name, options=options)
            text += self.again(name)
            self.assertEqual(code, 0, text + output)
            lines = re.findall(r"^freed: (\d+) of (\d+), cycles (\d+), lost (\d+)$", text, re.MULTILINE)
            self.assertEqual(sorted(int(line[0]) for line in lines), list(range(ranks)), text)
            self.assertEqual({int(line[1]) for line in lines}, {ranks}, text)
            self.assertEqual(len({line[2] for line in lines}), 1, text)

    def joined(self, text, epochs, ranks):
        """The lines of the ranks after each join: rank, last, next step, hash."""
        for epoch in range(1, epochs + 1):
            lines = re.findall(rf"^joined {epoch}: rank (\d+) of (\d+), last (\d+), next (\d+), hash ([0-9a-f]+)$", text, re.MULTILINE)
            self.assertEqual(sorted(int(line[0]) for line in lines), list(range(ranks)), text)
            self.assertEqual({int(line[1]) for line in lines}, {ranks}, text)
            self.assertEqual(len({line[2:] for line in lines}), 1, text)
            yield int(lines[0][2]), int(lines[0][3])

    def test_ranks_out_of_data_join(self):
        """Three times, 4 ranks with 3 to 6 batches: the others continue, and then all continue from the state of the last one."""
        code, text, output = self.run_elastic(4, 4, ["join", 3, 3])
        self.assertEqual(code, 0, text + output)
        self.assertEqual(list(self.joined(text, 3, 4)), [(3, 7), (3, 13), (3, 19)])
        self.assertIn("rank 0 (", text)
        self.assertIn("has joined: it is out of data", text)
        # The means of ranks 1 to 4, then without rank 1, and so on.
        for line, times in (("mean 2.5", 36), ("mean 3", 9), ("mean 3.5", 6), ("mean 4", 3)):
            self.assertEqual(text.splitlines().count(line), times, text)

    def test_killed_while_others_rest_or_resting(self):
        code, text, output = self.run_elastic(4, 2, ["join", 3, 2, 2, 4])
        self.assertEqual(code, 0, text + output)
        list(self.joined(text, 2, 3))
        code, text, output = self.run_elastic(4, 2, ["join", 3, 2, 0, 0], "resting")
        self.assertEqual(code, 0, text + output)
        list(self.joined(text, 2, 3))

    def grown(self, text):
        """The last step at which ranks joined."""
        return max(int(step) for step, _ in re.findall(r"^grew (\d+) of (\d+)$", text, re.MULTILINE))

    def test_a_lost_rank_is_started_again(self):
        """The rank joins at the end of a step; from then on the bits are those of a job of that size from that state."""
        for killed in (2, 0):
            with self.subTest(killed=killed):
                name = f"again{killed}"
                states = self.path("states-" + name)
                os.makedirs(states)
                code, text, output = self.run_job_words(4, 2, [ELASTIC, "grow", "12", "4", states, str(killed), "5"], name,
                                                        options=["--restarts", "1"])
                with open(self.path(name, f"rank{killed}.again1.log")) as file:
                    text += file.read()
                self.assertEqual(code, 0, text + output)
                together = self.results(text, 4)
                self.assertIn("with new ranks", text)
                step = self.grown(text)
                code, text, output = self.run_elastic(4, None, [step + 11, "from", os.path.join(states, f"state-{step}"), step], "four-" + name)
                self.assertEqual(code, 0, text + output)
                self.assertEqual(self.results(text, 4, 0), together)

    def test_two_are_started_again(self):
        states = self.path("states")
        os.makedirs(states)
        code, text, output = self.run_job_words(4, 1, [ELASTIC, "grow", "5", "4", states, "1", "4", "3", "4"], options=["--restarts", "2"])
        for again in glob.glob(self.path("run", "*.again*.log")):
            with open(again) as file:
                text += file.read()
        self.assertEqual(code, 0, text + output)
        self.results(text, 4)

    def test_started_again_in_vain(self):
        """The loss of a worker that dies before it has joined is not reported, and it is restarted once more."""
        states, mark = self.path("states"), self.path("mark")
        os.makedirs(states)
        script = (f'if [ $WEFT_RANK = 1 ]; then echo >>{mark}; [ $(wc -l <{mark}) = 2 ] && exit 3; fi; '
                  f'exec {ELASTIC} grow 5 3 {states} 1 4')
        code, text, output = self.run_job_words(3, 1, ["sh", "-c", script], options=["--restarts", "2"])
        with open(self.path("run", "rank1.again2.log")) as file:
            text += file.read()
        self.assertEqual(code, 0, text + output)
        self.results(text, 3)

    def test_join_in_a_job_that_is_not_elastic(self):
        code, text, output = self.run_elastic(2, None, ["join", 1, 1])
        self.assertEqual(code, 1, text + output)
        self.assertIn("only an elastic job continues without a rank", text)

    def test_abort_wakes_everybody(self):
        code, text, output = self.run_elastic(4, None, ["abort", 2])
        self.assertEqual(code, 0, text + output)
        woken = [line for line in text.splitlines() if line.startswith("aborted: ")]
        self.assertEqual(len(woken), 4, text)
        for line in woken:
            self.assertIn("rank 2 aborted the job: the loss is not finite", line)

    def served(self, workers, words, name, shards=2):
        return self.run_job_words(workers, 1, [SERVED] + [str(word) for word in words], name, options=["-s", str(shards)])

    def served_results(self, text, ranks):
        """Checks that the survivors have equal weights; returns the number of chunks closed before a loss."""
        lines = SERVED_LINE.findall(text)
        self.assertEqual(len(lines), ranks, text)
        self.assertEqual({int(line[0]) for line in lines}, {ranks}, text)
        self.assertEqual(len({line[4] for line in lines}), 1, text)
        return max(int(line[3]) for line in lines)

    def test_shards_killed_in_a_step(self):
        earlier = {}
        for where in ("before", "middle", "after"):
            with self.subTest(where=where):
                code, text, output = self.served(4, [6, 2, 3, where], "served-" + where)
                self.assertEqual(code, 0, text + output)
                earlier[where] = self.served_results(text, 3)
                self.assertIn("rank 2 (", text)
                self.assertIn("run step 3 again", text)
                self.assertIn("the job continues without it", output)
        self.assertEqual(earlier["before"], 0)
        self.assertGreater(earlier["after"], 0)  # the rank had waited for both tensors: all their chunks were closed

    def test_shards_killed_one_after_the_other(self):
        """Also rank 0, also in the first step, for which it sent the initial weights to the shards."""
        for name, kills in (("two", [3, 2, "middle", 1, 4, "middle"]), ("first", [0, 1, "middle"]), ("all", [0, 1, "after", 1, 2, "before", 2, 3, "middle"])):
            with self.subTest(name=name):
                code, text, output = self.served(4, [6] + kills, "served-" + name, shards=3)
                self.assertEqual(code, 0, text + output)
                self.served_results(text, 4 - len(kills) // 3)

    def test_shards_killed_at_any_time(self):
        seed = int(os.environ.get("WEFT_TEST_SEED", "1"))
        for round_number in range(6):
            chance = random.Random(seed * 1000 + round_number)
            name = f"served-random{round_number}"
            command = [harness.PROGRAMS.weft, "run", "-n", "5", "-s", "2", "--min-workers", "2", "--log-dir", self.path(name), "--", SERVED, "100"]
            code, killed, output = self.kill_some(command, name, SERVED, chance, 0.2)
            text = self.logs(name, 5)
            replay = f"replay: WEFT_TEST_SEED={seed}, round {round_number}\n{text}\n{output}"
            lines = SERVED_LINE.findall(text)
            self.assertEqual(code, 0, replay)
            self.assertGreaterEqual(len(lines), 5 - killed, replay)
            self.assertLessEqual(len({line[4] for line in lines}), 1, replay)

    def await_running(self, name, workers):
        deadline = time.monotonic() + 60
        while self.logs(name, workers).count("the job runs") < workers and time.monotonic() < deadline:
            time.sleep(0.01)

    def kill_some(self, command, name, program, chance, within):
        """Two of five workers, at random moments; the first within so many seconds."""
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
                                   env={**os.environ, "WEFT_DEADLINE_MS": "60000"})
        self.await_running(name, 5)
        time.sleep(chance.random() * within)
        found = subprocess.run(["pgrep", "-P", str(process.pid), "-f", program], stdout=subprocess.PIPE, text=True).stdout
        workers = [int(pid) for pid in found.split()]
        killed = 0
        for pid in chance.sample(workers, min(2, len(workers))):
            try:
                os.kill(pid, signal.SIGKILL)
                killed += 1
            except ProcessLookupError:
                pass
            time.sleep(chance.choice([0, 0.001, 0.003, 0.02]))
        output, _ = process.communicate(timeout=150)
        return process.returncode, killed, output

    def again(self, name):
        """The logs of the restarted workers."""
        text = ""
        for path in glob.glob(self.path(name, "*.again*.log")):
            with open(path, errors="replace") as file:
                text += file.read()
        return text

    def test_shards_and_a_lost_rank_is_started_again(self):
        """Each new rank takes the weights of the shards. Rank 0, which sent them the first weights, is replaced too, in the second job
        before a step has ended."""
        for name, kills in (("two", [2, 4, "before", 0, 7, "middle"]), ("first", [0, 1, "before"])):
            with self.subTest(name=name):
                name = "served-again-" + name
                restarts = str(len(kills) // 3)
                words = [SERVED, "grow", "5", "4"] + [str(word) for word in kills]
                code, text, output = self.run_job_words(4, 1, words, name, options=["-s", "2", "--restarts", restarts])
                text += self.again(name)
                self.assertEqual(code, 0, text + output)
                self.served_results(text, 4)
                self.assertIn("with new ranks", text)
                self.assertGreaterEqual(len(re.findall("^new$", text, re.MULTILINE)), 1, text)

    def test_shards_with_codecs(self):
        """A step that a loss interrupts is undone at the shards, so no chunk is of an earlier membership, also after a restart."""
        for codec in ("int8", "auto:int8"):
            with self.subTest(codec=codec):
                name = "served-codec-" + codec.replace(":", "-")
                code, text, output = self.served(4, ["codec=" + codec, 6, 2, 3, "after", 0, 5, "middle"], name)
                self.assertEqual(code, 0, text + output)
                self.assertEqual(self.served_results(text, 2), 0)
                self.assertIn("run step 3 again", text)
                name += "-again"
                words = [SERVED, "codec=" + codec, "grow", "5", "4", "2", "4", "after", "0", "7", "middle"]
                code, text, output = self.run_job_words(4, 1, words, name, options=["-s", "2", "--restarts", "2"])
                text += self.again(name)
                self.assertEqual(code, 0, text + output)
                self.assertEqual(self.served_results(text, 4), 0)
                self.assertIn("with new ranks", text)

    def test_shards_started_again_at_any_time(self):
        seed = int(os.environ.get("WEFT_TEST_SEED", "1"))
        for round_number in range(3):
            chance = random.Random(seed * 3000 + round_number)
            name = f"served-again{round_number}"
            command = [harness.PROGRAMS.weft, "run", "-n", "5", "-s", "2", "--min-workers", "2", "--restarts", "2", "--log-dir", self.path(name),
                       "--", SERVED, "grow", "5", "5"]
            code, killed, output = self.kill_some(command, name, SERVED, chance, 0.2)
            text = self.logs(name, 5) + self.again(name)
            replay = f"replay: WEFT_TEST_SEED={seed}, round {round_number}\n{text}\n{output}"
            self.assertEqual(killed, 2, replay)
            self.assertEqual(code, 0, replay)
            self.served_results(text, 5)

    def test_shards_refuse_the_rest(self):
        code, text, output = self.served(2, ["refused"], "served-refused")
        self.assertEqual(code, 0, text + output)
        self.assertEqual(text.count("its shards cannot undo an update"), 2, text)
        self.assertEqual(text.count("no weights yet; call weft_tensor_init first"), 2, text)

    def rested(self, text, rounds, ranks):
        """The next step after each rest of all ranks."""
        for number in range(1, rounds + 1):
            lines = re.findall(rf"^rested {number}: rank (\d+) of (\d+), last (\d+), next (\d+)$", text, re.MULTILINE)
            self.assertEqual(sorted(int(line[0]) for line in lines), list(range(ranks)), text)
            self.assertEqual({int(line[1]) for line in lines}, {ranks}, text)
            self.assertEqual(len({line[2:] for line in lines}), 1, text)
            yield int(lines[0][3])

    def test_shards_ranks_out_of_data_join(self):
        """The other ranks continue with means over their number; in the first step after a rest all ranks have the weights of the shards."""
        code, text, output = self.served(4, ["rest", 3, 2], "served-rest")
        self.assertEqual(code, 0, text + output)
        self.assertEqual(list(self.rested(text, 3, 4)), [6, 11, 16])
        self.assertIn("has joined: it is out of data", text)
        self.assertEqual(len(set(re.findall("hash ([0-9a-f]+)", text))), 4, text)  # each rank holds its last weights; the shards hold the newest

    def test_shards_killed_while_others_rest_or_resting(self):
        code, text, output = self.served(4, ["rest", 2, 2, 2, 4, "middle"], "served-rest-others")
        self.assertEqual(code, 0, text + output)
        list(self.rested(text, 2, 3))
        code, text, output = self.served(4, ["rest", 2, 2, 0, 3, "resting"], "served-resting")
        self.assertEqual(code, 0, text + output)
        list(self.rested(text, 2, 3))

    def test_a_lost_shard_ends_the_job(self):
        command = [harness.PROGRAMS.weft, "run", "-n", "3", "-s", "2", "--min-workers", "1", "--log-dir", self.path("served-shard"), "--", SERVED, "100000"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
        self.await_running("served-shard", 3)
        found = subprocess.run(["pgrep", "-P", str(process.pid), "-f", "weftd.*--index 1"], stdout=subprocess.PIPE, text=True).stdout
        os.kill(int(found.split()[0]), signal.SIGKILL)
        output, _ = process.communicate(timeout=150)
        text = self.logs("served-shard", 3)
        self.assertEqual(process.returncode, 1, text + output)
        self.assertIn("shard 1", text)
        self.assertFalse(SERVED_LINE.findall(text))

    def run_trainer(self, name, words, file, line, options):
        """A trainer of three ranks, of which one is lost and, with --restarts, replaced. Rank 0's logs."""
        script = DIES.format(mark=self.path("mark-" + name), line=line, file=file, words=words)
        code, text, output = self.run_job_words(3, 2, ["sh", "-c", script], name, options=options)
        text += self.again(name)
        self.assertEqual(code, 0, text + output)
        self.assertIn("the job continues without it", output)
        self.assertIn("this is rank 0 of 2 now", text)
        self.assertEqual("with new ranks" in text, "--restarts" in options, text)
        return text + output

    def test_trainer_of_one_tensor(self):
        """examples/02_push_pull, with steps of some ms, so that the loss is in the middle."""
        with mock.patch.dict(os.environ, {"WEFT_TRANSPORT_WRAP": "delay:delay_us=3000"}):
            for name, best, options in (("shards", "1.0000", ["-s", "1", "--restarts", "1"]), ("plain", "0.5000", [])):
                with self.subTest(name=name):
                    name = "push-pull-" + name
                    text = self.run_trainer(name, os.path.join(EXAMPLES, "02_push_pull"), self.path(name, "rank0.log"), "step 10", options)
                    self.assertIn(f"the weights went to {best} (best: {best})", text)

    def test_trainer_of_images(self):
        """examples/fashion_mnist: the new worker gets the weights and the plan, and ends with the weights of the others.
        Steps take some ms, so that it joins before the last."""
        if not os.path.isdir(harness.DATA):
            self.skipTest("dataset-fashion-mnist is not installed")
        for name, codec in (("dense", "dense"), ("powersgd", "powersgd:rank=2")):
            with self.subTest(name=name):
                rows = self.path(name + ".csv")
                words = f"{harness.PROGRAMS.trainer} --steps 160 --eval-every 20 --hidden 64 --batch 32 --codec {codec} --csv {rows}"
                with mock.patch.dict(os.environ, {"WEFT_TRANSPORT_WRAP": "delay:delay_us=5000"}):
                    text = self.run_trainer("images-" + name, words, rows, "20,", ["-s", "1", "--restarts", "1"])
                self.assertIn(f"codec {codec}, workers 3, shards 1, seed 1, steps 160", text)

    def test_killed_at_any_time(self):
        """Two of five at random times, sometimes while the others agree on the first loss."""
        seed = int(os.environ.get("WEFT_TEST_SEED", "1"))
        for round_number in range(8):
            chance = random.Random(seed * 100 + round_number)
            name = f"random{round_number}"
            command = [harness.PROGRAMS.weft, "run", "-n", "5", "--min-workers", "2", "--log-dir", self.path(name), "--", ELASTIC, "300"]
            code, killed, output = self.kill_some(command, name, ELASTIC, chance, 0.1)
            text = self.logs(name, 5)
            replay = f"replay: WEFT_TEST_SEED={seed}, round {round_number}\n{text}\n{output}"
            lines = LINE.findall(text)
            self.assertEqual(code, 0, replay)
            self.assertGreaterEqual(len(lines), 5 - killed, replay)  # a rank may have printed before it was killed
            self.assertLessEqual(len({line[3] for line in lines}), 1, replay)


if __name__ == "__main__":
    harness.main()
