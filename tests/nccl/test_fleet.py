"""test_fleet.py - CollNet's sums through the shards of a fleet (nccl.fleet): real shard processes on loopback.

The ranks are threads of the harness, as in its other CollNet points. The plugin's log has what each rank reports.

usage: test_fleet.py HARNESS PLUGIN WEFTD [unittest arguments]"""

import os
import re
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools", "dev"))
import jobs  # noqa: E402

HARNESS, PLUGIN, WEFTD = (os.path.abspath(path) for path in sys.argv[1:4])
COPIES = {"WEFT_SERVER_COPIES": "1", "WEFT_SERVER_COPIES_ON_ONE_HOST": "yes"}
FALL_BACK = "calls with other reductions than sum, or other types than f32, f16 and bf16, go through the collectives"


class Fleet(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        self.group = self.enterContext(jobs.Group(self.directory.name)) if hasattr(self, "enterContext") else self.enter()

    def enter(self):
        group = jobs.Group(self.directory.name).__enter__()
        self.addCleanup(group.__exit__, None, None, None)
        return group

    def start(self, workers, shards=1, backend="tcp", **environment):
        """Starts the shards of a job of `workers` ranks. Later runs have the same environment."""
        self.environment = {"WEFT_TRANSPORT_BACKEND": backend, **environment}
        ports = os.path.join(self.directory.name, "ports")
        for index in range(shards):
            words = [WEFTD, "--index", str(index), "--listen", "127.0.0.1"]
            if index == 0:
                words += ["--workers", str(workers), "--shards", str(shards), "--port-file", ports]
            else:
                words += ["--coordinator", self.coordinator]
            self.last_shard = self.group.start(f"shard{index}", words, self.environment)
            if index == 0:
                self.coordinator = jobs.wait_for_port_file(ports, self.group, 30)

    def run_point(self, point, ranks, *arguments, **environment):
        """Runs a point of the harness, which must pass, and returns its output with the plugin's log."""
        inherited = {key: value for key, value in os.environ.items() if key not in jobs.JOB_VARIABLES}
        words = [HARNESS, "--plugin", PLUGIN, "--points", point, "--ranks", str(ranks), "--log", *arguments]
        own = {**self.environment, "WEFT_NCCL_FLEET": self.coordinator, **environment}
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=100, env={**inherited, **own})
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn(" 0 failed", done.stdout)
        return done.stdout

    def sums(self, output):
        """(bytes of the sums, sent, received) of each rank."""
        return [tuple(map(int, found)) for found in re.findall(r"sums of (\d+) bytes through the shards at \S+: (\d+) bytes sent, (\d+) received", output)]

    def test_all_types(self):
        """All types and reductions are right, through shards or not; one line for each rank names those that are not."""
        self.start(3, shards=2)
        output = self.run_point("coll-types", 3)
        self.assertEqual(output.count("sums of f32, f16 and bf16 go through the shards at"), 3, output)
        self.assertEqual(output.count(FALL_BACK), 3, output)
        self.assertEqual([each[0] for each in self.sums(output)], 3 * [(2 + 2 + 4) * (1 + 17 + 3001)], output)

    def check_values(self, ranks, shards):
        """Sums through shards have the bits of the scalar oracle: the canonical tree, NaN, infinities, denormals."""
        self.start(ranks, shards, backend="shm")
        output = self.run_point("coll-values", ranks)
        self.assertEqual([each[0] for each in self.sums(output)], ranks * [(2 + 2 + 4) * (31 + 600 + 150000)], output)

    def test_values_of_two(self):
        self.check_values(2, 3)

    def test_values_of_three(self):
        self.check_values(3, 1)

    def test_values_of_four(self):
        self.check_values(4, 2)

    def test_bits(self):
        """Bits of the canonical tree on all ranks, for any number of shards."""
        self.start(5, shards=3, backend="shm")
        output = self.run_point("coll-bits", 5, WEFT_NCCL_REPRODUCIBLE="yes")
        self.assertEqual([each[0] for each in self.sums(output)], 5 * [1600000], output)

    def test_traffic(self):
        """A node sends n bytes and receives n; a ring of four would take 1.5 n."""
        self.start(4)
        for total, sent, received in self.sums(self.run_point("coll-traffic", 4)):
            self.assertEqual(total, 40 * 4 * 3001)
            self.assertTrue(total <= sent < 1.1 * total and total <= received < 1.1 * total, (total, sent, received))

    def test_full_queue(self):
        self.start(2, backend="shm")
        self.assertIn("64 sums of 256 bytes", self.run_point("coll-full", 2))

    def test_many_sizes(self):
        """Of 70 sizes 64 have tensors. One line for each rank reports the others."""
        self.start(2, backend="shm")
        output = self.run_point("coll-many-sizes", 2)
        self.assertEqual(output.count("calls of further sizes go through the collectives"), 2, output)
        self.assertEqual([each[0] for each in self.sums(output)], 2 * [4 * (64 * 65 // 2 + 70)], output)

    def test_open_sums_at_the_end(self):
        """deregMr with a sum open: no shard writes to the memory afterwards."""
        self.start(2, backend="shm")
        self.assertEqual(self.run_point("coll-abort", 2).count("go through the shards at"), 2)

    def test_lost_shard(self):
        self.start(2, shards=2)
        output = self.run_point("coll-shard", 2, "--shard", str(self.last_shard.pid))
        self.assertEqual(output.count("go through the shards at"), 2, output)

    def test_lost_shard_with_copies(self):
        self.start(2, shards=3, **COPIES)
        output = self.run_point("coll-shard", 2, "--shard", str(self.last_shard.pid))
        self.assertEqual([each[0] for each in self.sums(output)], 2 * [80 * 4 * 3001], output)

    def test_second_communicator(self):
        """The job has ended with the first one; the second uses the collectives."""
        self.start(3)
        output = self.run_point("coll-bits", 0)
        self.assertEqual([each[0] for each in self.sums(output)], 3 * [1600000], output)
        self.assertEqual(len(re.findall(r"rank \d of 5 uses the collectives, not the shards at \S+: ", output)), 5, output)

    def test_falls_back(self):
        """A fleet that no rank can join: the collectives do it, and one line for each rank has the reason."""
        self.start(3)
        output = self.run_point("coll-bits", 3, WEFT_JOB="another")
        self.assertEqual(len(re.findall(r"rank \d of 3 uses the collectives, not the shards at \S+: .*names job another", output)), 3, output)
        self.assertEqual(self.sums(output), [])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
