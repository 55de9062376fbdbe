"""test_rollback.py - server.rollback: killed shards had the only copy of chunks, and the job begins again.

Its weights have the bits of a job that is started from the last snapshot."""

import json
import os
import subprocess
import unittest

import harness
import jobs
from snapshot_jobs import TRAINER, SnapshotTest

ZONES = "abaa"  # of the shards


class Rollback(SnapshotTest):
    def start(self, shards, codec, **options):
        """A job of 20 steps with a snapshot of step 10. Its two workers wait behind step 12 for `go`."""
        group = self.group()
        variables = {"WEFT_" + name.upper(): value for name, value in options.items()}
        environment = {"WEFT_SNAPSHOT_FOLDER": self.path("folder"), "WEFT_SNAPSHOT_EVERY": "10 steps",
                       "WEFT_SERVER_ROLLBACK": "yes", "SNAPSHOT_TRAINER_AWAITS": "12:" + self.path("go"),
                       **variables}
        words = [TRAINER, "20", "0", codec]
        zones = {f"shard{number}": {"WEFT_SERVER_ZONE": ZONES[number]} for number in range(shards)}
        jobs.start_by_hand(harness.PROGRAMS, group, shards, 2, words, environment=environment, own=zones)
        self.wait_for("the snapshot of step 10", lambda: self.snapshots(self.path("folder")) == [10], group)
        return group

    def zones(self, group):
        words = [harness.PROGRAMS.weft, "status", "--json"]
        variables = {**os.environ, **self.job_variables(group)}
        done = subprocess.run(words, stdout=subprocess.PIPE, check=True, timeout=30, env=variables)
        shards = [row for row in json.loads(done.stdout)["members"] if row["role"] == "shard"]
        return [row["zone"] for row in sorted(shards, key=lambda row: row["index"])]

    def kill(self, group, *numbers):
        """server.move_rate delays new copies, so the second loss takes the only copy of some slots."""
        lost = [f"shard{number}" for number in numbers]
        processes = dict(group.processes)
        group.processes = [(name, process) for name, process in group.processes if name not in lost]
        for name in lost:
            harness.kill(processes[name])
            processes[name].wait()

    def check(self, group, codec, sentence):
        """Both ranks see the rollback once, and continue behind step 10."""
        open(self.path("go"), "w").close()
        group.wait(120)
        whole = self.train_to(20, shards=1, codec=codec, snapshot_restore=self.path("folder") + ":10")
        self.assertIsNotNone(whole, self.output)
        for rank in range(2):
            log = self.log(group, f"worker{rank}")
            self.assertEqual(log.count("rolled back: "), 1, log)
            self.assertIn(sentence, log)
            self.assertIn("the job begins again from the snapshot of step 10", log)
            self.assertIn(f"blob of step 10, step 10, rank {rank}", log)
            self.assertIn(f"steps 11 to 20: {whole[1]}", log)
        self.assert_nothing_left(self.directory)

    def test_two_of_four_shards(self):
        """Shard 1 has the copies of the others, which are in another zone.

        So the loss of shard 3 takes the only copy of its chunks. The two that are left have copies of each
        other, with a warning. A codec's residuals are those of the snapshot.
        """
        warning = "may be in its zone a: no shard of another zone can have them"
        copies = {"server_copies": "1", "server_copies_on_one_host": "yes", "server_move_rate": "1"}
        group = self.start(4, "topk:ratio=0.1", **copies)
        self.assertEqual(self.zones(group), list(ZONES))
        self.assertEqual(self.log(group, "shard0").count(warning), 0)
        self.kill(group, 1, 3)
        self.check(group, "topk:ratio=0.1", "of its chunks has no copy")
        self.assertEqual(self.log(group, "shard0").count(warning), 2)

    def test_without_copies(self):
        group = self.start(2, "dense")
        self.kill(group, 1)
        self.check(group, "dense", "shard 1 ")


if __name__ == "__main__":
    unittest.main()
