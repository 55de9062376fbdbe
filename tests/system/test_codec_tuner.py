"""test_codec_tuner.py - codec auto in whole jobs: the decision on a slow link, and equal weights for any decision.

The delay wrapper of the transport limits the link to 12.5 MB/s: the largest matrix takes a third of a second dense."""

import json

import harness

SLOW = {"WEFT_TRANSPORT_WRAP": "delay:rate_bytes=12500000"}
STEPS = 20


class Judge(harness.JobTest):
    def tensors(self, codec, workers=2, environment=None, shards=0):
        name = f"{codec.replace(':', '-')}-{shards}"
        report, hashes = self.path(name + ".json"), self.path(name + "-hashes")
        words = ["--steps", str(STEPS), "--eval-every", "1000", "--batch", "32", "--json", report, "--hash-steps", hashes]
        mode = "server" if shards else "all_reduce"
        self.train(shards, workers, ["--mode", mode, "--codec", codec] + words, name, environment=environment)
        ranks = []
        for rank in range(workers):
            with open(f"{hashes}.{rank}") as file:
                ranks.append(file.read())
        self.assertEqual(len(set(ranks)), 1, "the ranks' weights differ")
        with open(report) as file:
            return {tensor["name"]: tensor for tensor in json.load(file)["tensors"]}

    def check_slow_link(self, shards):
        tensors = self.tensors("auto:lossy", environment=SLOW, shards=shards)
        for name in ("fc1.weight", "fc2.weight"):
            self.assertTrue(tensors[name]["chosen"])
            self.assertNotEqual(tensors[name]["codec"], "dense")
            self.assertGreater(tensors[name]["saved_bytes"], 0)
            self.assertGreaterEqual(tensors[name]["changes"], 1)

    def test_slow_link(self):
        self.check_slow_link(0)

    def test_slow_link_to_shards(self):
        self.check_slow_link(2)

    def test_only_what_is_named(self):
        tensors = self.tensors("auto", workers=3, environment=SLOW)
        self.assertTrue(all(tensor["codec"] in ("dense", "bf16") for tensor in tensors.values()), tensors)

    def test_no_candidates(self):
        """Without candidates auto is dense; a codec by name is used as it is."""
        self.assertEqual({tensor["codec"] for tensor in self.tensors("auto:dense").values()}, {"dense"})
        tensors = self.tensors("bf16")
        self.assertEqual({(tensor["codec"], tensor["chosen"], tensor["changes"]) for tensor in tensors.values()}, {("bf16", False, 0)})


if __name__ == "__main__":
    harness.main()
