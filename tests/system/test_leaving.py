"""test_leaving.py - the highest rank has less data than the others and leaves in order, with shards: what the others wait for can never come, and
ends at once with the rank, the tensor and the step."""

import os
import re

import harness

LEAVER = os.path.join(harness.BUILD, "tests", "client", "leaver")
ENDED = re.compile(r"^ended (\w+) after (\d+) ms: (.*)$", re.MULTILINE)


class Leaving(harness.JobTest):
    def ends(self, kind, codec, shards):
        """Status, milliseconds and sentence of each rank that goes on."""
        with self.subTest(kind=kind, codec=codec, shards=shards):
            name = f"{kind}-{codec[:5]}-{shards}"
            done = self.run_job(shards, 3, [LEAVER, kind, codec], name, environment={"WEFT_DEADLINE_MS": "60000"})
            for rank in range(2):
                with open(self.path(name, f"rank{rank}.log"), errors="replace") as file:
                    ends = ENDED.findall(file.read())
                self.assertEqual(len(ends), 1, done.stdout)
                status, took_ms, text = ends[0]
                self.assertLess(int(took_ms), 20000, done.stdout)
                self.assertIn("rank 2", text)
                yield status, text

    def test_before_it_pushed(self):
        for kind, codec in (("push_pull", "dense"), ("push", "dense"), ("push_pull", "topk:ratio=0.1,min_count=0"), ("push_pull", "powersgd:rank=2")):
            for shards in (1, 2):
                for status, text in self.ends(kind, codec, shards):
                    self.assertEqual(status, "WEFT_ERR_PEER_LOST", text)
                    self.assertRegex(text, r"step 3 of '(kernel|bias)' chunk \d+: rank 2 left before it pushed")

    def test_in_the_middle_of_a_step(self):
        """It leaves with a request open: weft_finalize aborts the job."""
        for codec in ("dense", "topk:ratio=0.1,min_count=0"):
            for status, text in self.ends("part", codec, 2):
                self.assertIn(status, ("WEFT_ERR_CLOSED", "WEFT_ERR_PEER_LOST"), text)


if __name__ == "__main__":
    harness.main()
