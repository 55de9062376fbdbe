"""test_snapshot.py - snapshots of running jobs: a job that is restored from one, on any number of shards, goes on bit for bit."""

import glob
import os
import re
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


if __name__ == "__main__":
    unittest.main()
