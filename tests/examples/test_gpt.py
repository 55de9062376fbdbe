"""test_gpt.py - examples/gpt: two ranks train as one rank with the whole batch, with and without shards, and a
resumed job has the bits of the undisturbed one."""

import array
import glob
import gzip
import os
import re
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "system"))
import harness  # noqa: E402

TINY = ["--blocks", "2", "--width", "16", "--heads", "2", "--length", "16", "--batch", "4", "--steps", "6", "--every", "6"]

SNAPSHOT = ["--codec", "powersgd:rank=2", "--steps", "100000", "--every", "100000"]


class Gpt(harness.JobTest):
    def setUp(self):
        super().setUp()
        self.program = os.path.join(harness.BUILD, "examples", "gpt")
        if not os.path.exists(self.program):
            self.skipTest("examples/gpt is not built: it needs OpenBLAS and zlib")
        with open(os.path.join(harness.ROOT, "docs", "wire.md"), "rb") as file, gzip.open(self.path("text.gz"), "wb") as packed:
            packed.write(file.read())
        self.jobs = 0

    def gpt(self, shards, ranks, words=(), folder=None):
        """Runs one job. Returns (hashes of the weights of all ranks, held-out loss, weights of the checkpoint)."""
        self.jobs += 1
        folder = folder or self.path(f"folder{self.jobs}")
        os.makedirs(folder, exist_ok=True)
        done = self.run_job(shards, ranks, [self.program, "--text", self.path("text.gz"), "--checkpoint", folder, *TINY, *words],
                            name=f"run{self.jobs}")
        self.assertEqual(done.returncode, 0, done.stdout)
        hashes = dict(re.findall(r"rank (\d+): weights ([0-9a-f]+)", done.stdout))
        self.assertEqual(len(hashes), ranks, done.stdout)
        self.assertEqual(len(set(hashes.values())), 1, done.stdout)
        loss = float(re.findall(r"held-out loss (\S+),", done.stdout)[-1])
        with open(os.path.join(folder, "latest"), encoding="ascii") as file:
            step = file.read().split()[0]
        self.assertEqual(len(os.listdir(folder)), 3 + ranks)
        with open(os.path.join(folder, "weights-" + step), "rb") as file:
            weights = array.array("f", file.read())
        return hashes["0"], loss, weights

    def assert_close(self, one, other):
        self.assertEqual(len(one[2]), len(other[2]))
        self.assertAlmostEqual(one[1], other[1], places=4)
        self.assertLess(max(abs(a - b) for a, b in zip(one[2], other[2]) if a == a), 1e-4)

    def test_ranks(self):
        for precision in ("f32", "bf16"):
            one = self.gpt(0, 1, ["--precision", precision])
            two = self.gpt(0, 2, ["--precision", precision])
            self.assertNotEqual(one[0], two[0])  # sums in another order
            self.assert_close(one, two)
            if precision == "f32":
                self.assertEqual(self.gpt(1, 2)[0], two[0])
                for overlap in ("after", "backward"):
                    self.assertEqual(self.gpt(0, 2, ["--overlap", overlap])[0], two[0])

    def test_resume(self):
        for shards, codec in ((0, "powersgd:rank=2"), (1, "dense")):
            words = ["--codec", codec, "--precision", "bf16"]
            whole = self.gpt(shards, 2, words)
            folder = self.path(f"resume{shards}")
            half = self.gpt(shards, 2, [*words, "--stop", "3"], folder)
            again = self.gpt(shards, 2, [*words, "--resume"], folder)
            self.assertNotEqual(half[0], whole[0])
            self.assertEqual(again[0], whole[0])

    def children(self, launcher):
        """Process ids of the ranks and shards of a `weft run`."""
        found = []
        for path in glob.glob("/proc/[0-9]*/stat"):
            try:
                with open(path, encoding="ascii", errors="replace") as file:
                    if int(file.read().rsplit(")", 1)[1].split()[1]) == launcher.pid:
                        found.append(int(path.split("/")[2]))
            except (OSError, IndexError, ValueError):
                continue
        return found

    def run_to(self, stop, environment=(), words=()):
        """Runs a job with shards up to this step. Returns the hash of its weights."""
        self.jobs += 1
        done = self.run_job(2, 2, [self.program, "--text", self.path("text.gz"), *TINY, *SNAPSHOT, "--stop", str(stop), *words],
                            name=f"run{self.jobs}", environment=dict(environment))
        self.assertEqual(done.returncode, 0, done.stdout)
        hashes = set(re.findall(r"rank \d+: weights ([0-9a-f]+)", done.stdout))
        self.assertEqual(len(hashes), 1, done.stdout)
        return hashes.pop()

    def test_snapshot(self):
        """A job of which all processes are killed continues from a snapshot of its shards with the bits of the undisturbed one."""
        folder = self.path("snapshots")
        launcher = subprocess.Popen([harness.PROGRAMS.weft, "run", "-s", "2", "-n", "2", "--log-dir", self.path("killed"), "--", self.program,
                                     "--text", self.path("text.gz"), *TINY, *SNAPSHOT], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                    env={**os.environ, "WEFT_SNAPSHOT_FOLDER": folder, "WEFT_SNAPSHOT_EVERY": "2 steps"})
        try:
            self.wait_for("a snapshot", lambda: glob.glob(os.path.join(folder, "snap-*.json")) or launcher.poll() is not None)
            for child in self.children(launcher):
                os.kill(child, signal.SIGKILL)
            self.assertNotEqual(launcher.wait(60), 0)
        finally:
            launcher.kill()
            launcher.wait()
        step = min(int(re.search(r"snap-(\d+)\.json$", path)[1]) for path in glob.glob(os.path.join(folder, "snap-*.json")))
        # the seed of the samples is in the blob: another one on the command line has no effect
        again = self.run_to(step + 5, {"WEFT_SNAPSHOT_RESTORE": f"{folder}:{step}"}, ["--seed", "77"])
        self.assertEqual(again, self.run_to(step + 5))

    def test_text(self):
        """The default model on the text of its package (WEFT_GPT_TEXT): bf16 reaches the loss of f32."""
        text = os.environ.get("WEFT_GPT_TEXT")
        if not text:
            self.skipTest("WEFT_GPT_TEXT is not set")
        if not os.path.exists(text):
            self.skipTest(f"{text} is missing: install the Debian package dict-gcide (tools/install-packages --full)")
        for precision in ("f32", "bf16"):
            done = self.run_job(0, 2, [self.program, "--text", text, "--steps", "100", "--precision", precision], name=precision)
            self.assertEqual(done.returncode, 0, done.stdout)
            self.assertLess(float(re.findall(r"held-out loss (\S+),", done.stdout)[-1]), 2.65)

    def test_exposed_report(self):
        command = [harness.PROGRAMS.weft, "run", "-n", "2", "--exposed", "--log-dir", self.path("exposed"), "--", self.program,
                   "--text", self.path("text.gz"), *TINY]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=100, check=False)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertRegex(done.stdout, r"rank 0 of 2: 6 steps of [0-9.]+ ms; [0-9.]+ % of it waiting in weft")
        self.assertRegex(done.stdout, r"\n\d\.\w+ +\d+ +6 +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+ ")
        for rank in range(2):
            with open(self.path("exposed", f"exposed-rank{rank}.txt"), encoding="utf-8") as file:
                self.assertIn(f"rank {rank} of 2: 6 steps", file.read())

    def test_sentences(self):
        for words, sentence in ((["--text", "/nowhere"], "dict-gcide"), (["--width", "15"], "multiple of --heads"),
                                (["--batch", "3"], "no multiple of 2 ranks")):
            done = self.run_job(0, 2, [self.program, "--text", self.path("text.gz"), *TINY, *words], name=words[0])
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(sentence, done.stdout)


if __name__ == "__main__":
    harness.main()
