"""test_outer.py - outer steps in a job that loses a worker, and in one that starts it again: the ranks end with equal weights."""

import glob
import os
import re
import subprocess

import harness

WORKER = os.path.join(harness.BUILD, "tests", "client", "outer_job")
LINE = re.compile(r"^ranks (\d+) steps (\d+) shrunk (\d+) grew (\d+) hash ([0-9a-f]+)$", re.MULTILINE)
CASES = {"blocking": ["3", "1", "0", "dense"], "fragments": ["6", "3", "1", "int8:min_count=0"]}


class Outer(harness.JobTest):
    def run_workers(self, name, ranks, options, words, environment=()):
        command = [harness.PROGRAMS.weft, "run", "-n", str(ranks), "--log-dir", self.path(name), *options, "--", WORKER, *words]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=100, start_new_session=True,
                              env={**os.environ, "WEFT_DEADLINE_MS": "60000", **dict(environment)})
        text = ""
        for path in sorted(glob.glob(self.path(name, "rank*.log"))):
            with open(path, errors="replace") as file:
                text += file.read()
        self.assertEqual(done.returncode, 0, text + done.stdout)
        lines = LINE.findall(text)
        self.assertEqual(len({line[4] for line in lines}), 1, text)
        return lines, text

    def test_undisturbed(self):
        for name, options in CASES.items():
            with self.subTest(case=name):
                lines, text = self.run_workers(name, 3, [], ["20", *options])
                self.assertEqual([line[:4] for line in lines], [("3", "20", "0", "0")] * 3, text)

    def test_a_rank_is_killed(self):
        for name, options in CASES.items():
            with self.subTest(case=name):
                lines, text = self.run_workers("killed-" + name, 3, ["--min-workers", "2"], ["20", *options, "1", "8"])
                self.assertEqual([line[:4] for line in lines], [("2", "20", "1", "0")] * 2, text)

    def test_a_killed_rank_is_started_again(self):
        for name, options in CASES.items():
            with self.subTest(case=name):
                lines, text = self.run_workers("again-" + name, 3, ["--min-workers", "1", "--restarts", "1"], ["20", *options, "1", "8"],
                                               {"WAIT_FOR_GROWTH": "1"}.items())
                self.assertEqual([line[:2] for line in lines], [("3", "20")] * 3, text)


if __name__ == "__main__":
    harness.main()
