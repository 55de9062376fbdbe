"""test_snapshot.py - snapshots of running jobs: a job that is restored from one, on any number of shards, goes on bit for bit."""

import glob
import json
import os
import random
import re
import signal
import subprocess
import time
import unittest

import harness

TRAINER = os.path.join(harness.BUILD, "tests", "system", "snapshot_trainer")


class Snapshot(harness.JobTest):
    def train_to(self, last, shards=2, workers=2, pause_ms=0, codec="dense", **options):
        """Runs one job. Returns (its first step, the hash of its weights); None if it did not finish."""
        self.jobs = getattr(self, "jobs", 0) + 1
        environment = {"WEFT_" + name.upper(): value for name, value in options.items()}
        done = self.run_job(shards, workers, [TRAINER, str(last), str(pause_ms), codec], name=f"run{self.jobs}",
                            environment={"WEFT_LOG_LEVEL": "info", **environment})
        self.output = done.stdout
        found = re.search(r"steps (\d+) to \d+: (\S+)", done.stdout)
        return (int(found[1]), found[2]) if done.returncode == 0 and found else None

    def snapshots(self, folder):
        return sorted(int(re.search(r"snap-(\d+)\.json$", path)[1]) for path in glob.glob(os.path.join(folder, "snap-*.json")))

    def test_restore(self):
        folder = self.path("snapshots")
        whole = self.train_to(60, pause_ms=10, snapshot_folder=folder, snapshot_every="20 steps")
        self.assertIsNotNone(whole, self.output)
        steps = self.snapshots(folder)
        self.assertIn(20, steps, self.output)
        for shards in (1, 2, 3):
            with self.subTest(shards=shards):
                again = self.train_to(60, shards=shards, snapshot_restore=f"{folder}:20")
                self.assertEqual(again, (21, whole[1]), self.output)

    def test_last_step(self):
        """The last step of a job is a snapshot too. Other workers and shards go on from it."""
        folder = self.path("snapshots")
        whole = self.train_to(20)
        self.assertIsNotNone(self.train_to(10, snapshot_folder=folder, snapshot_every="10 steps"), self.output)
        self.assertEqual(self.snapshots(folder), [10], self.output)
        self.assertEqual(self.train_to(20, shards=1, snapshot_restore=folder), (11, whole[1]), self.output)
        self.assertEqual(self.train_to(12, workers=3, snapshot_restore=folder)[0], 11, self.output)

    def test_commands(self):
        folder, exported = self.path("snapshots"), self.path("out.safetensors")
        self.assertIsNotNone(self.train_to(10, snapshot_folder=folder, snapshot_every="5 steps", pause_ms=100), self.output)
        rows = json.loads(self.weft("list", folder, "--json"))
        self.assertEqual([row["step"] for row in rows], [5, 10], self.output)
        self.assertEqual([rows[0][name] for name in ("workers", "shards", "weights", "tensors")], [2, 2, "f32", 3])
        self.assertEqual(len(self.weft("list", folder).splitlines()), 3)
        self.assertEqual([row["is_whole"] for row in json.loads(self.weft("verify", folder, "--json"))], [True, True])
        self.weft("export", folder + ":5", "-o", exported, "--states")
        with open(exported, "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        self.assertEqual(sorted(name for name in header if name.startswith("large")), ["large", "large.state0", "large.state1"])
        self.assertEqual(header["large"]["shape"], [300000])
        self.weft("prune", folder, "--keep", "1", "--age", "0")
        self.assertEqual(self.snapshots(folder), [10])
        self.assertEqual(self.weft("verify", folder), "step 10 is whole\n")
        piece = glob.glob(os.path.join(folder, "pieces", "*", "*"))[0]
        with open(piece, "r+b") as file:
            file.seek(20)
            file.write(b"damage")
        self.assertIn(os.path.basename(piece)[:32], self.weft("verify", folder, status=1))

    def shards_of(self, launcher):
        """Process ids of the shards that a `weft run` has started."""
        found = []
        for path in glob.glob("/proc/[0-9]*/stat"):
            try:
                with open(path) as file:
                    name, rest = file.read().rsplit(")", 1)
            except OSError:
                continue
            if name.endswith("(weftd") and int(rest.split()[1]) == launcher.pid:
                found.append(int(path.split("/")[2]))
        return found

    def test_kills(self):
        """Shards that are killed while they store snapshots leave whole ones, and the job goes on from the newest."""
        folder = self.path("snapshots")
        for seed in range(2):
            environment = {**os.environ, "WEFT_SNAPSHOT_FOLDER": folder, "WEFT_SNAPSHOT_EVERY": "2 steps"}
            if seed > 0:
                environment["WEFT_SNAPSHOT_RESTORE"] = folder
            before = self.snapshots(folder)
            launcher = subprocess.Popen([harness.PROGRAMS.weft, "run", "-s", "2", "-n", "2", "--log-dir", self.path(f"killed{seed}"), "--",
                                         TRAINER, "1000000", "1"], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                self.wait_for("a new snapshot", lambda: len(set(self.snapshots(folder)) - set(before)) > 1)
                time.sleep(random.Random(seed).random() * 0.1)
                for shard in self.shards_of(launcher):
                    os.kill(shard, signal.SIGKILL)
                self.assertNotEqual(launcher.wait(60), 0)
            finally:
                launcher.kill()
                launcher.wait()
            self.assertIn("is whole", self.weft("verify", folder))
            newest = self.snapshots(folder)[-1]
            self.assertEqual(self.train_to(newest + 2, snapshot_restore=folder)[0], newest + 1, self.output)

    def weft(self, *words, status=0):
        done = subprocess.run([harness.PROGRAMS.weft, "snapshot", *words], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, status, done.stderr)
        return done.stdout + done.stderr


if __name__ == "__main__":
    unittest.main()
