"""test_inspect.py - a rank is killed or stopped in the middle of an all_reduce job: every survivor names it, and so does
`weft inspect` from the flight records among the logs."""

import glob
import json
import os
import random
import re
import signal
import subprocess
import time

import harness

WORKERS = 4
DEADLINE_MS = 1500


class Inspect(harness.JobTest):
    def children(self, launcher):
        """{rank: pid} of the trainers under `weft run`."""
        ranks = {}
        for path in glob.glob("/proc/[0-9]*/stat"):
            try:
                with open(path) as file:
                    parent = int(file.read().rsplit(")", 1)[1].split()[1])
                pid = int(path.split("/")[2])
                if parent != launcher.pid:
                    continue
                with open(f"/proc/{pid}/environ", "rb") as file:
                    variables = dict(pair.split(b"=", 1) for pair in file.read().split(b"\0") if b"=" in pair)
                ranks[int(variables[b"WEFT_RANK"])] = pid
            except (OSError, ValueError, KeyError, IndexError):
                continue
        return ranks

    def inspect(self, logs, *words):
        return subprocess.run([harness.PROGRAMS.weft, "inspect", *words, logs], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=60)

    def strike(self, number, seed):
        draw = random.Random(seed)
        name = f"{signal.Signals(number).name}-{seed}"
        csv, logs = self.path(name + ".csv"), self.path(name)
        group = self.group(name + "-launcher")
        run = group.start("run", [harness.PROGRAMS.weft, "run", "-n", str(WORKERS), "--log-dir", logs, "--", harness.PROGRAMS.trainer, "--mode",
                                  "all_reduce", "--eval-every", "2", "--epochs", "50", "--csv", csv], {"WEFT_DEADLINE_MS": str(DEADLINE_MS)})
        self.wait_for_steps(group, csv)
        pids = self.children(run)
        self.assertEqual(sorted(pids), list(range(WORKERS)))
        time.sleep(draw.uniform(0, 0.4))
        victim = draw.randrange(WORKERS)
        os.kill(pids[victim], number)
        struck = time.monotonic()
        run.wait(timeout=60)
        print(f"{name}: rank {victim}, job over after {time.monotonic() - struck:.2f} s", end="; ")
        self.assertNotEqual(run.returncode, 0)
        for rank in range(WORKERS):
            if rank == victim:
                continue
            with open(os.path.join(logs, f"rank{rank}.log"), errors="replace") as file:
                log = file.read()
            named = re.search(rf"rank {victim} \([^)]*\) does not answer" if number == signal.SIGSTOP else rf"lost rank {victim} \(", log)
            self.assertTrue(named, f"rank {rank} does not name rank {victim}:\n{log}")
            if number == signal.SIGSTOP:
                self.assertRegex(log, r"operation \d+ \([a-z_]+ .*phase [a-z]+")
        self.assertEqual(len(glob.glob(os.path.join(logs, "flight-*.json"))), WORKERS - 1)
        table = self.inspect(logs)
        self.assertEqual(table.returncode, 1, table.stdout)
        found = json.loads(self.inspect(logs, "--json").stdout)
        self.assertTrue(found["trouble"])
        self.assertRegex(table.stdout, rf"no record of rank {victim}\b")
        troubled = [g for g in found["groups"] if g["trouble"]]
        if number == signal.SIGSTOP or troubled:  # the killed rank may have died between two operations
            self.assertEqual(troubled[0]["missing_ranges"], [[victim, victim]], table.stdout)
            self.assertIn(f"rank {victim} left no record", table.stdout)
        self.assert_nothing_left(self.directory)

    def test_stopped(self):
        for seed in (1, 2):
            self.strike(signal.SIGSTOP, seed)

    def test_killed(self):
        for seed in (3, 4):
            self.strike(signal.SIGKILL, seed)

    def test_a_full_disk(self):
        """If the disk is full, each survivor logs one sentence, leaves no partial file, and ends as before."""
        disk = self.path("disk")
        os.mkdir(disk)
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], stderr=subprocess.DEVNULL).returncode != 0:
            self.skipTest("a file system may not be mounted here")
        try:
            with open(os.path.join(disk, "filler"), "wb") as file:
                file.write(bytes(60 << 10))
            csv, logs = self.path("full.csv"), self.path("full")
            group = self.group("full-launcher")
            run = group.start("run", [harness.PROGRAMS.weft, "run", "-n", str(WORKERS), "--log-dir", logs, "--", harness.PROGRAMS.trainer, "--mode",
                                      "all_reduce", "--eval-every", "2", "--epochs", "50", "--csv", csv], {"WEFT_RECORDER_DIRECTORY": disk})
            self.wait_for_steps(group, csv)
            os.kill(self.children(run)[2], signal.SIGKILL)
            run.wait(timeout=60)
            self.assertNotEqual(run.returncode, 0)
            for rank in (0, 1, 3):
                with open(os.path.join(logs, f"rank{rank}.log"), errors="replace") as file:
                    log = file.read()
                self.assertIn("lost rank 2 (", log)
                self.assertEqual(log.count("the flight record cannot be written to"), 1, log)
                self.assertIn(f"the flight record cannot be written to {disk}: No space left on device", log)
            self.assertEqual(os.listdir(disk), ["filler"])
        finally:
            subprocess.run(["umount", disk], check=True)

    def test_a_directory_without_records(self):
        nothing = self.inspect(self.directory)
        self.assertEqual(nothing.returncode, 3)
        self.assertIn("no file in it is called flight-", nothing.stdout)
        self.assertEqual(subprocess.run([harness.PROGRAMS.weft, "inspect"], stderr=subprocess.PIPE).returncode, 2)


if __name__ == "__main__":
    harness.main()
