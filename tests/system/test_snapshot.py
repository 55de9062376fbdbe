"""test_snapshot.py - snapshots of running jobs: a job that is restored from one, on any number of shards, continues bit for bit."""

import glob
import os
import random
import re
import signal
import subprocess
import time
import unittest

import harness
import snapshot_jobs


class Snapshot(snapshot_jobs.SnapshotTest):
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

    def test_codec(self):
        """Codecs with residuals continue bit for bit: residuals, warm starts and counters are in the workers' parts."""
        for codec in ("topk:ratio=0.05", "int8"):
            with self.subTest(codec=codec):
                folder = self.path("snapshots-" + codec[:4])
                whole = self.train_to(30, pause_ms=10, codec=codec, snapshot_folder=folder, snapshot_every="10 steps")
                self.assertIsNotNone(whole, self.output)
                self.assertIn(10, self.snapshots(folder), self.output)
                again = self.train_to(30, shards=1, codec=codec, snapshot_restore=f"{folder}:10")
                self.assertEqual(again, (11, whole[1]), self.output)
                self.assertEqual(self.blobs(), {(0, 10, 0), (1, 10, 1)}, self.output)
        self.assertIn("is whole", self.weft("verify", folder))
        for workers, blobs in ((1, {(0, 10, 0), (0, 10, 1)}), (3, {(0, 10, 0), (1, 10, 1)})):
            with self.subTest(workers=workers):
                self.assertEqual(self.train_to(12, workers=workers, codec=codec, snapshot_restore=f"{folder}:10")[0], 11, self.output)
                self.assertEqual(self.blobs(), blobs, self.output)

    def test_clocks(self):
        """Consistency ssp and asp: one rank that pushes nothing meanwhile continues bit for bit, also when no tensor has a
        common step."""
        folder = self.path("snapshots")
        options = {"workers": 1, "consistency": "asp"}
        whole = self.train_to(30, pause_ms=10, snapshot_folder=folder, snapshot_every="10 steps", awaits=f"10:{folder}/snap-10.json",
                              **options)
        self.assertIsNotNone(whole, self.output)
        self.assertIn(10, self.snapshots(folder), self.output)
        again = self.train_to(30, shards=1, snapshot_restore=f"{folder}:10", **options)
        self.assertEqual(again, (11, whole[1]), self.output)
        environment = {**os.environ, "WEFT_SNAPSHOT_FOLDER": folder, "WEFT_SNAPSHOT_EVERY": "100ms", "WEFT_SNAPSHOT_RESTORE": folder}
        words = ["run", "-s", "2", "-n", "2", "--log-dir", self.path("clocks"), "--", snapshot_jobs.TRAINER, "1000000", "1", "dense", "ssp:2"]
        launcher = subprocess.Popen([harness.PROGRAMS.weft, *words], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            self.wait_for("a snapshot of two ranks", lambda: self.snapshots(folder)[-1] > 30)
            for shard in self.shards_of(launcher):
                os.kill(shard, signal.SIGKILL)
            self.assertNotEqual(launcher.wait(60), 0)
        finally:
            launcher.kill()
            launcher.wait()
        self.assertIn("is whole", self.weft("verify", folder))

    def blobs(self):
        """(rank, step, rank of the blob) of all blobs that the last job has read."""
        found = re.findall(r"rank (\d+): blob of step (\d+), step (\d+), rank (\d+)", self.output)
        self.assertTrue(all(step == written for _, step, written, _ in found), self.output)
        return {(int(rank), int(step), int(of)) for rank, step, _, of in found}

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
        """Shards that are killed while they store snapshots leave whole ones, and the job continues from the newest."""
        folder = self.path("snapshots")
        for seed in range(2):
            environment = {**os.environ, "WEFT_SNAPSHOT_FOLDER": folder, "WEFT_SNAPSHOT_EVERY": "2 steps"}
            if seed > 0:
                environment["WEFT_SNAPSHOT_RESTORE"] = folder
            before = self.snapshots(folder)
            launcher = subprocess.Popen([harness.PROGRAMS.weft, "run", "-s", "2", "-n", "2", "--log-dir", self.path(f"killed{seed}"), "--",
                                         snapshot_jobs.TRAINER, "1000000", "1", "int8"], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
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
            self.assertEqual(self.train_to(newest + 2, codec="int8", snapshot_restore=folder)[0], newest + 1, self.output)
            self.assertEqual(self.blobs(), {(0, newest, 0), (1, newest, 1)}, self.output)

    def test_copies(self):
        """A snapshot under way ends with a lost shard. The others are whole, and copies are restored as their leaders are."""
        folder = self.path("snapshots")
        copies = {"server_copies": "1", "server_copies_on_one_host": "yes"}
        environment = {**os.environ, "WEFT_SNAPSHOT_FOLDER": folder, "WEFT_SNAPSHOT_EVERY": "2 steps",
                       **{"WEFT_" + name.upper(): value for name, value in copies.items()}}
        launcher = subprocess.Popen([harness.PROGRAMS.weft, "run", "-s", "3", "-n", "2", "--log-dir", self.path("lost"), "--",
                                     snapshot_jobs.TRAINER, "200", "10"], env=environment, stdout=subprocess.PIPE,
                                    stderr=subprocess.STDOUT, text=True)
        try:
            self.wait_for("a snapshot", lambda: self.snapshots(folder))
            last = max(self.shards_of(launcher))  # not shard 0, which coordinates
            os.kill(last, signal.SIGKILL)
            before = self.snapshots(folder)[-1]
            output = launcher.communicate(timeout=60)[0]
        finally:
            launcher.kill()
            launcher.wait()
        self.assertEqual(launcher.returncode, 0, output)
        self.assertIn("the job continues with the copies of its chunks", output)
        self.assertGreater(self.snapshots(folder)[-1], before, output)
        self.assertIn("is whole", self.weft("verify", folder))
        newest = self.snapshots(folder)[-1]
        whole = self.train_to(newest + 20)
        for options in ({"shards": 2}, {"shards": 3, **copies}):
            again = self.train_to(newest + 20, snapshot_restore=folder, **options)
            self.assertEqual(again, (newest + 1, whole[1]), self.output)


if __name__ == "__main__":
    unittest.main()
