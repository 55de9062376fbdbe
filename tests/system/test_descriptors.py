"""test_descriptors.py - a program closes or replaces descriptors that weft opened: weft_wait and weft_finalize return, weft_finalize
within 5 s, and the log has a bounded number of lines, one of which names the cause.

UCX ends a process that uses one of its sockets after the program has closed it, so the test closes only descriptors of weft itself."""

import glob
import os
import re
import subprocess

import harness

PROGRAM = os.path.join(harness.BUILD, "tests", "client", "closed_descriptors")
LEAVER = os.path.join(harness.BUILD, "tests", "client", "leaver")
CAUSE = "the program closed or replaced descriptors that weft opened"
LINES = 24  # of both ranks
LINE = re.compile(r"^rank (\d): wait (-?\d+) after (\d+) ms, finalize (-?\d+) after (\d+) ms$", re.M)


class Descriptors(harness.JobTest):
    def check(self, backend, shards, how, kind, *wait):
        name = "-".join((backend, str(shards), how, kind, *wait))
        with self.subTest(name):
            done = self.run_job(shards, 2, [PROGRAM, how, kind, "-1", *wait], name, seconds=60,
                                environment={"WEFT_TRANSPORT_BACKEND": backend, "WEFT_DEADLINE_MS": "20000",
                                             # libevent frees its last buffers in an event that no longer fires
                                             "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"})
            text = ""
            for path in sorted(glob.glob(os.path.join(self.path(name), "rank*.log"))):
                with open(path, errors="replace") as file:
                    text += file.read()
            ranks = LINE.findall(text)
            self.assertEqual([rank for rank, *_ in ranks], ["0", "1"], done.stdout)
            for _, _, _, status, milliseconds in ranks:
                self.assertEqual(int(status), 0, text)
                self.assertLess(int(milliseconds), 5000, text)
            self.assertIn(CAUSE, text)
            self.assertLessEqual(len(text.splitlines()), LINES, text)

    def check_backend(self, backend):
        for shards in (0, 1):
            self.check(backend, shards, "close", "all")
            self.check(backend, shards, "null", "all", "wait")

    def test_few(self):
        """Too few descriptors for a job with shards: the reason is in the log of the process that lacks them."""
        for limit in (38, 31, 20):
            with self.subTest(limit=limit):
                name = f"few-{limit}"
                command = ["sh", "-c", f'ulimit -n {limit}; exec "$@"', "sh", harness.PROGRAMS.weft, "run", "-s", "1", "-n", "3", "-l", self.path(name),
                           "--", LEAVER, "push_pull", "dense"]
                done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60,
                                      env={**os.environ, "WEFT_DEADLINE_MS": "10000"})
                text = done.stdout
                for path in glob.glob(os.path.join(self.path(name), "*.log")):
                    with open(path, errors="replace") as file:
                        text += file.read()
                if limit < 32 or "ended WEFT_ERR_PEER_LOST" not in text:  # else there were enough, and rank 2 has left in order
                    self.assertIn("ulimit -n", text)
                self.assertNotIn("a limit is reached", text)

    def test_auto(self):
        self.check_backend("auto")

    def test_tcp(self):
        self.check_backend("tcp")

    def test_shm(self):
        self.check_backend("shm")

    def test_ucx(self):
        self.check("ucx", 0, "close", "events")
        self.check("ucx", 1, "null", "events")

    def test_of_one_kind(self):
        for kind in ("sockets", "epolls", "events"):
            self.check("auto", 0, "close", kind, "wait")
            self.check("auto", 0, "null", kind)

    def test_replaced_by_silent_sockets(self):
        self.check("auto", 0, "shuffle", "all")


if __name__ == "__main__":
    harness.main()
