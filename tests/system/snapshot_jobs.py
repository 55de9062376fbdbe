"""snapshot_jobs.py - base of the tests of snapshots: jobs of snapshot_trainer, and the command that checks a folder."""

import glob
import os
import re
import subprocess

import harness

TRAINER = os.path.join(harness.BUILD, "tests", "system", "snapshot_trainer")


class SnapshotTest(harness.JobTest):
    def train_to(self, last, shards=2, workers=2, pause_ms=0, codec="dense", consistency=None, awaits="", **options):
        """Runs one job, which waits for the file of `awaits` (STEP:FILE). Returns (its first step, the hash of its weights);
        None if it did not finish."""
        self.jobs = getattr(self, "jobs", 0) + 1
        environment = {"WEFT_" + name.upper(): value for name, value in options.items()}
        words = [TRAINER, str(last), str(pause_ms), codec] + ([consistency] if consistency else [])
        done = self.run_job(shards, workers, words, name=f"run{self.jobs}",
                            environment={"WEFT_LOG_LEVEL": "info", "SNAPSHOT_TRAINER_AWAITS": awaits, **environment})
        self.output = done.stdout
        found = re.search(r"steps (\d+) to \d+: (\S+)", done.stdout)
        return (int(found[1]), found[2]) if done.returncode == 0 and found else None

    def snapshots(self, folder):
        return sorted(int(re.search(r"snap-(\d+)\.json$", path)[1]) for path in glob.glob(os.path.join(folder, "snap-*.json")))

    def weft(self, *words, status=0):
        done = subprocess.run([harness.PROGRAMS.weft, "snapshot", *words], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, status, done.stderr)
        return done.stdout + done.stderr
