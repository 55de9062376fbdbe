"""test_receive_memory.py - the memory of a shard is bounded by its options over every transport.

A shard receives a tensor from 1, 4 and 16 workers that push all of it at once, with receive memory for a part of it.
Its own memory (anonymous, and the mapped memory that it allocated) stays below
weights + states + receive memory of its engines + 16 MiB + 128 KiB for each worker. The suite full has 64 workers: --workers 64.
"""

import json
import os
import subprocess
import sys
import threading
import unittest

import harness

MIB = 1 << 20
TENSOR = 8 * MIB
RECEIVE = 4 * MIB
WORKERS = (1, 4, 16)


def shard_of(session):
    """The process of weftd in this session; None: not started yet."""
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat", encoding="utf-8") as file:
                name, rest = file.read().rsplit(")", 1)
        except OSError:
            continue
        if name.endswith("(weftd") and int(rest.split()[3]) == session:
            return int(entry)
    return None


def own_bytes(pid):
    """Anonymous bytes of the process, and allocated bytes of the mapped memory that it shares with its peers."""
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:
        # a process that has ended has no such line
        total = next((int(line.split()[1]) * 1024 for line in file if line.startswith("RssAnon")), 0)
    files = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{fd}"
        if os.readlink(path).startswith("/memfd:weft-memory"):
            about = os.stat(path)
            # descriptors of peers are closed after the mapping
            files.add((about.st_ino, about.st_blocks * 512))
    return total + sum(size for _, size in files)


class ReceiveMemory(harness.JobTest):
    def peak(self, transport, workers):
        command = [harness.PROGRAMS.weft, "bench", "push_pull", "-n", str(workers), "-s", "1", "-b", str(TENSOR), "-e", str(TENSOR),
                   "--iters", "3", "-w", "1", "--transport", transport, "--json"]
        environment = {**os.environ, "WEFT_SERVER_RECEIVE_BYTES": str(RECEIVE)}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True, env=environment)
        output = []
        reader = threading.Thread(target=lambda: output.append(process.stdout.read()))
        reader.start()
        most, pid = 0, None
        while reader.is_alive():
            pid = pid or shard_of(process.pid)
            try:
                most = max(most, own_bytes(pid)) if pid else 0
            except OSError:
                pass  # it has ended
            reader.join(0.01)
        process.stdout.close()
        self.assertEqual(process.wait(), 0, output[0])
        row = next(line for line in output[0].splitlines() if line.startswith("{"))  # log lines may precede it
        self.assertEqual(json.loads(row)["wrong"], 0)
        self.assertGreater(most, TENSOR, "the shard holds the tensor")
        return most

    def check(self, transport):
        for workers in WORKERS:
            with self.subTest(transport=transport, workers=workers):
                most = self.peak(transport, workers)
                bound = TENSOR + RECEIVE + 16 * MIB + workers * MIB // 8
                print(f"{transport} {workers} workers: {most / MIB:.1f} of {bound / MIB:.1f} MiB")
                self.assertLessEqual(most, bound)

    @unittest.skipIf(harness.sanitized(), "a sanitizer has memory of its own")
    def test_tcp(self):
        self.check("tcp")

    @unittest.skipIf(harness.sanitized(), "a sanitizer has memory of its own")
    def test_shm(self):
        self.check("shm")

    @unittest.skipIf(harness.sanitized(), "a sanitizer has memory of its own")
    def test_ucx(self):
        if not os.path.exists(os.path.join(harness.BUILD, "transport", "libweft_ucx.so")):
            self.skipTest("this build has no ucx")
        self.check("ucx")


if __name__ == "__main__":
    if "--workers" in sys.argv:
        at = sys.argv.index("--workers")
        WORKERS = (int(sys.argv[at + 1]),)
        del sys.argv[at:at + 2]
    harness.main()
