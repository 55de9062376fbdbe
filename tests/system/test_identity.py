"""test_identity.py - parameter server and all-reduce give the same weights, bit for bit, after every step.

Matrices are larger than one chunk (1 MiB chunks, 4 MiB matrix) on two shards, so the pieces of a tensor are on different
shards. The hashes of every rank and step are compared."""

import harness

STEPS = 8


class Identity(harness.JobTest):
    def hashes(self, mode, workers, extra=(), name=None):
        name = name or f"{mode}-{workers}"
        path = self.path(name + "-hashes")
        self.train(2, workers, ["--mode", mode, "--steps", str(STEPS), "--batch", str(128 // workers), "--chunk", str(1 << 20),
                                "--eval-every", "1000", "--hash-steps", path, *extra], name)
        ranks = []
        for rank in range(workers):
            with open(f"{path}.{rank}") as file:
                ranks.append(file.read().split("\n")[:-1])
        self.assertEqual(len(ranks[0]), STEPS)
        self.assertEqual(len(set(ranks[0])), STEPS, "the weights did not change in some step")
        for rank, lines in enumerate(ranks):
            self.assertEqual(lines, ranks[0], f"rank {rank} of {name} differs from rank 0")
        return ranks[0]

    def test_two_workers(self):
        self.assertEqual(self.hashes("server", 2), self.hashes("all_reduce", 2))

    def test_four_workers(self):
        self.assertEqual(self.hashes("server", 4), self.hashes("all_reduce", 4))

    def test_compressed(self):
        """Equal contributions give equal aggregates in both modes."""
        for codec in ("powersgd:rank=4", "topk:ratio=0.01"):
            with self.subTest(codec=codec):
                extra = ["--hidden", "200", "--codec", codec]
                self.assertEqual(self.hashes("server", 3, extra, codec[:4] + "-server"),
                                 self.hashes("all_reduce", 3, extra, codec[:4] + "-all_reduce"))

    def test_run_twice(self):
        """Also across runs; with three workers no mean is exact, and odd tensors are cut unevenly."""
        odd = ["--hidden", "333"]
        self.assertEqual(self.hashes("server", 3, odd, "first"), self.hashes("all_reduce", 3, odd, "second"))

    def test_seed_matters(self):
        """The comparison can fail."""
        small = ["--hidden", "64"]
        self.assertNotEqual(self.hashes("server", 2, small, "one"), self.hashes("server", 2, small + ["--seed", "2"], "two"))


if __name__ == "__main__":
    harness.main()
