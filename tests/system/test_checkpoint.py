"""test_checkpoint.py - examples/03_checkpoint.c: a job that is stopped and started again continues bit for bit, on any number of
shards. A job that is killed, on any rank and at any change of the folder, leaves a complete checkpoint: the one before, or its own."""

import os
import re
import shutil
import signal
import unittest

import harness

STEPS = 4
CHANGES = {0: 8, 1: 2}  # changes of the folder by each rank: writes, renames, removals


class Checkpoint(harness.JobTest):
    def steps(self, folder, shards=1, **more):
        """Runs one job. Returns (its first step, the sum of its weights); None if it did not finish."""
        self.jobs = getattr(self, "jobs", 0) + 1
        done = self.run_job(shards, 2, [os.path.join(harness.BUILD, "examples", "03_checkpoint"), folder, str(STEPS)],
                            name=f"run{self.jobs}", **more)
        self.output = done.stdout
        found = re.search(r"steps (\d+) to \d+: the weights sum to (\S+)", done.stdout)
        return (int(found[1]), found[2]) if done.returncode == 0 and found else None

    def folder(self, name):
        os.mkdir(self.path(name))
        return self.path(name)

    def kill_at(self, rank, change, after):
        environment = {"LD_PRELOAD": os.environ["WEFT_DIE_AT"], "DIE_RANK": str(rank), "DIE_AT": str(change)}
        environment["ASAN_OPTIONS"] = os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"  # die_at is preloaded before the sanitizer
        if after:
            environment["DIE_AFTER"] = "1"
        return environment

    def test_kills(self):
        once = self.folder("once")
        wanted = [self.steps(once, shards) for shards in (1, 2, 1)]
        self.assertEqual([first for first, _ in wanted], [1, 1 + STEPS, 1 + 2 * STEPS], self.output)
        base = self.folder("base")
        self.assertEqual(self.steps(base), wanted[0])
        for rank, changes in CHANGES.items():
            for change in range(1, changes + 1):
                for after in (False, True):
                    with self.subTest(rank=rank, change=change, after=after):
                        folder = self.path(f"killed-{rank}-{change}-{after}")
                        shutil.copytree(base, folder)
                        self.steps(folder, environment=self.kill_at(rank, change, after))
                        self.assertIn("killed by signal 9", self.output.lower().replace("sigkill", "signal 9"))
                        again = self.steps(folder)
                        self.assertIn(again, wanted[1:], self.output)


if __name__ == "__main__":
    unittest.main()
