"""test_bench.py - weft bench starts its processes, finds no wrong element in any type, and says so in every form; the
small examples run."""

import json
import os
import subprocess

import harness

KEYS = {"op", "plan", "transport", "ranks", "dtype", "bytes", "count", "time_us", "algbw_GBps", "busbw_GBps", "wrong", "iters", "p50_us", "p99_us"}


class Bench(harness.JobTest):
    def bench(self, *words):
        done = subprocess.run([harness.PROGRAMS.weft, "bench", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def rows(self, *words):
        rows = [json.loads(line) for line in self.bench(*words, "--iters", "3", "--warmup", "1", "--json").splitlines()]
        for row in rows:
            self.assertLessEqual(KEYS, set(row))
            self.assertEqual(row["wrong"], 0)
            self.assertGreater(row["time_us"], 0)
        return rows

    def test_all_reduce_types(self):
        for dtype, size in (("f32", 4), ("f16", 2), ("bf16", 2), ("i64", 8)):
            with self.subTest(dtype=dtype):
                rows = self.rows("all_reduce", "-n", "3", "-b", "8", "-e", "3M", "-f", "50", "-d", dtype)
                self.assertEqual([row["bytes"] for row in rows], [8, 400, 20000, 1000000])
                self.assertEqual([row["count"] * size for row in rows], [row["bytes"] for row in rows])
                self.assertEqual({row["ranks"] for row in rows}, {3})

    def test_all_reduce_plans(self):
        for plan in ("direct", "ring"):
            for op in ("sum", "avg"):
                with self.subTest(plan=plan, op=op):
                    rows = self.rows("all_reduce", "-n", "3", "-b", "4", "-e", "2M", "-f", "97", "--plan", plan, "-o", op)
                    self.assertEqual({row["plan"] for row in rows}, {plan})
                    self.assertEqual(len(rows), 3)

    def test_push_pull(self):
        rows = self.rows("push_pull", "-n", "2", "-s", "2", "-b", "4", "-e", "9M", "-f", "1100")
        self.assertEqual([row["bytes"] for row in rows], [4, 4400, 4840000])

    def test_table(self):
        table = self.bench("all_reduce", "-n", "2", "-e", "64K", "-f", "16")
        for word in ("size", "count", "type", "redop", "time", "algbw", "busbw", "#wrong", "out-of-place", "in-place", "# wrong elements: 0"):
            self.assertIn(word, table)

    def test_examples(self):
        for shards, name, words in ((0, "01_all_reduce", "of 3"), (1, "02_push_pull", "through shards"), (0, "02_push_pull", "without shards")):
            with self.subTest(name=name, shards=shards):
                done = self.run_job(shards, 3, [os.path.join(harness.BUILD, "examples", name)], f"{name}-{shards}")
                self.assertEqual(done.returncode, 0, done.stdout)
                self.assertIn(words, done.stdout)


if __name__ == "__main__":
    harness.main()
