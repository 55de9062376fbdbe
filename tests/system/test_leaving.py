"""test_leaving.py - with shards, the highest rank has less data than the others and leaves in order. Operations that wait for it can
never complete: they fail at once with the rank, the tensor and the step. Also ranks that end without leaving."""

import os
import re
import subprocess

import harness

UNFINISHED = os.path.join(harness.BUILD, "tests", "client", "unfinished")
LEAVER = os.path.join(harness.BUILD, "tests", "client", "leaver")
ENDED = re.compile(r"^ended (\w+) after (\d+) ms: (.*)$", re.MULTILINE)


class Leaving(harness.JobTest):
    def ends(self, kind, codec, shards, deadline_ms=60000, of_trainer=False):
        """Status, milliseconds and sentence of each rank that goes on."""
        with self.subTest(kind=kind, codec=codec, shards=shards):
            name = f"{kind}-{codec[:5]}-{shards}-{of_trainer}"
            arguments = [str(deadline_ms)] if of_trainer else []
            environment = {} if of_trainer else {"WEFT_DEADLINE_MS": str(deadline_ms)}
            done = self.run_job(shards, 3, [LEAVER, kind, codec] + arguments, name, environment=environment)
            for rank in range(2):
                with open(self.path(name, f"rank{rank}.log"), errors="replace") as file:
                    ends = ENDED.findall(file.read())
                self.assertEqual(len(ends), 1, done.stdout)
                status, took_ms, text = ends[0]
                self.assertLess(int(took_ms), 20000, done.stdout)
                self.assertIn("rank 2", text)
                yield status, text

    def test_before_it_pushed(self):
        for kind, codec in (("push_pull", "dense"), ("push", "dense"), ("push_pull", "topk:ratio=0.1,min_count=0"), ("push_pull", "powersgd:rank=2")):
            for shards in (1, 2):
                for status, text in self.ends(kind, codec, shards):
                    self.assertEqual(status, "WEFT_ERR_PEER_LOST", text)
                    self.assertRegex(text, r"step 3 of '(kernel|bias)' chunk \d+: rank 2 left before it pushed")

    def test_that_does_not_push(self):
        """A shard has the deadline of the workers, of a variable or weft_options, and names the rank before it passes."""
        for of_trainer in (False, True):
            for status, text in self.ends("idle", "dense", 1, deadline_ms=3000, of_trainer=of_trainer):
                self.assertEqual(status, "WEFT_ERR_DEADLINE", text)
                self.assertIn("no push from rank 2 in 2.7 s", text)

    def test_in_the_middle_of_a_step(self):
        """It leaves with a request open: weft_finalize aborts the job."""
        for codec in ("dense", "topk:ratio=0.1,min_count=0"):
            for status, text in self.ends("part", codec, 2):
                self.assertIn(status, ("WEFT_ERR_CLOSED", "WEFT_ERR_PEER_LOST"), text)

    def run_unfinished(self, which, how, shards, workers_min):
        """Exit status and output of weft run, without the logs of its processes."""
        command = [harness.PROGRAMS.weft, "run", "-s", str(shards), "-n", "3", "--log-dir", self.path(f"{which}-{how}-{shards}-{workers_min}")]
        command += ["--min-workers", str(workers_min)] if workers_min else []
        done = subprocess.run(command + ["--", UNFINISHED, which, how], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60,
                              start_new_session=True)
        return done.returncode, done.stderr

    def test_without_weft_finalize(self):
        """The same status and one warning, with and without shards: the workers' own statuses decide."""
        for which, status in (("one", 0), ("all", 0), ("waited", 1)):
            for how in ("return", "exit", "_exit", "slow"):
                for shards in (0, 2):
                    for workers_min in (0, 1):
                        if which == "waited" and workers_min:
                            continue # the others shrink, and a loss without a step ends their operation
                        with self.subTest(which=which, how=how, shards=shards, workers_min=workers_min):
                            code, output = self.run_unfinished(which, how, shards, workers_min)
                            self.assertEqual(code, status, output)
                            self.assertEqual(len(re.findall(r"weft run: rank \d \(pid \d+\) ended without weft_finalize", output)), 1, output)
                            self.assertNotIn("weft run: shard 0 (pid", output)

    def test_finalized_by_a_handler_of_exit(self):
        for shards in (0, 2):
            code, output = self.run_unfinished("all", "late", shards, 0)
            self.assertEqual(code, 0, output)
            self.assertNotIn("ended without weft_finalize", output)


if __name__ == "__main__":
    harness.main()
