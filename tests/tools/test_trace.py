"""test_trace.py - a job whose endpoints write traces, merged by `weft trace merge` into one that parses.

Also made-up files: the clock of another host, a process that died while it wrote, a file without a trace.
"""

import glob
import json
import os
import subprocess
import sys
import tempfile
import unittest

WEFT = os.path.join(os.environ.get("WEFT_BUILD", "build"), "tools", "weft")


class TraceTest(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory(prefix="weft-trace-")
        self.addCleanup(self.scratch.cleanup)

    def path(self, name):
        return os.path.join(self.scratch.name, name)

    def weft(self, *words, **environment):
        return subprocess.run([WEFT, *words], capture_output=True, text=True, timeout=60, env={**os.environ, **environment})

    def write(self, name, lines):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write("\n".join(lines))
        return self.path(name)

    def clock(self, endpoint, host, monotonic_us, wall_us):
        arguments = {"host": host, "monotonic_ns": monotonic_us * 1000, "wall_ns": wall_us * 1000}
        return json.dumps({"name": "weft_clock", "ph": "M", "pid": endpoint, "args": arguments}) + ","

    def event(self, endpoint, name, time_us):
        return json.dumps({"name": name, "ph": "i", "pid": endpoint, "ts": time_us}) + ","

    @unittest.skipUnless(os.environ.get("WEFT_TEST_JOBS"), "no transport for jobs in this build")
    def test_job(self):
        done = self.weft("run", "-s", "0", "-n", "2", "--log-dir", self.path("logs"), "--", WEFT, "bench", "all_reduce", "-b", "1M", "-e", "1M",
                         WEFT_TRANSPORT_WRAP=f"trace:file={self.scratch.name}/t-%e.json;delay:delay_us=10")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        files = sorted(glob.glob(self.path("t-*.json")))
        self.assertEqual(len(files), 2)
        merged = self.weft("trace", "merge", "-o", self.path("all.json"), *files)
        self.assertEqual(merged.returncode, 0, merged.stderr)
        with open(self.path("all.json"), encoding="utf-8") as file:
            events = json.load(file)
        names = {event["name"] for event in events}
        self.assertLessEqual({"send", "recv", "connect", "close", "process_name", "weft_clock"}, names)
        begun = [event for event in events if event["ph"] == "b"]
        ended = {event["id"]: event for event in events if event["ph"] == "e"}
        self.assertEqual(len(begun), len(ended))
        for event in begun:
            self.assertGreaterEqual(ended[event["id"]]["ts"], event["ts"])
            self.assertIn(event["args"]["peer"], {other["pid"] for other in events})
        self.assertEqual(len({event["pid"] for event in events}), 2)
        self.assertGreater(sum(event["args"]["bytes"] for event in begun if event["name"] == "send"), 2 << 20)

    def test_hosts_are_aligned(self):
        here = self.write("a", ["[", self.clock(1, "a", 1000, 5000000), self.event(1, "x", 1500), "]"])
        same = self.write("b", ["[", self.clock(2, "a", 1100, 4000000), self.event(2, "y", 1600), "]"])
        there = self.write("c", ["[", self.clock(3, "b", 900000, 5000100), self.event(3, "z", 900300), "]"])
        done = self.weft("trace", "merge", here, same, there)
        self.assertEqual(done.returncode, 0, done.stderr)
        times = {event["name"]: event.get("ts") for event in json.loads(done.stdout)}
        self.assertEqual((times["x"], times["y"], times["z"]), (1500, 1600, 1400))

    def test_clock_that_cannot_be(self):
        file = self.write("a", ["[", '{"name":"weft_clock","args":{"wall_ns":9223372036854775807,"monotonic_ns":-9223372036854775808}},',
                                '{"name":"weft_clock","args":7},', '{"name":"weft_clock","args":{"host":["x"],"wall_ns":"now"}},', self.event(1, "x", 7), "]"])
        done = self.weft("trace", "merge", self.write("b", [self.clock(1, "b", 0, 0)]), file)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)[-1]["name"], "x")

    def test_cut_off_file(self):
        file = self.write("a", ["[", self.clock(1, "a", 0, 0), self.event(1, "x", 7), '{"name":"send","ph":"b","ts"'])
        done = self.weft("trace", "merge", file)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([event["name"] for event in json.loads(done.stdout)], ["weft_clock", "x"])

    def test_mistakes(self):
        wrong = self.write("a", ["[", "hello", "]"])
        for words, sentence in [
            (["merge", wrong], "a:2: this is no line of a trace"),
            (["merge", self.path("none")], "cannot be opened: No such file"),
            (["merge", "-o", "/nonexistent/x", wrong], "/nonexistent/x cannot be written"),
            (["merge", "-o", wrong, wrong], "is one of the files to merge"),
            (["merge"], "the files to merge are missing"),
            (["split", "x"], "the only action is"),
            ([], "the action is missing"),
        ]:
            done = self.weft("trace", *words)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(sentence, done.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
