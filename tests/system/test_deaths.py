"""test_deaths.py - a killed process ends the job for everybody: soon, with its name in the error, leaving nothing behind.

The processes are started one by one, so that no launcher ends them in the library's place; then once more
through `weft run`."""

import os
import subprocess
import time

import harness
import jobs

LIMIT = 2.0  # seconds from the death to the last end


class Deaths(harness.JobTest):
    def check(self, victim, mode, codec="dense"):
        group = self.group()
        csv = self.path("report.csv")
        trainer = [harness.PROGRAMS.trainer, "--mode", mode, "--codec", codec, "--eval-every", "5", "--hidden", "512", "--csv", csv]
        jobs.start_by_hand(harness.PROGRAMS, group, 2, 3, trainer)
        self.wait_for_steps(group, csv)
        processes = dict(group.processes)
        harness.kill(processes[victim])
        others = [(name, process) for name, process in group.processes if name != victim]
        times = harness.ends(others, 15)
        print(" ".join(f"{name} {value:.2f} s" if value is not None else f"{name} never" for name, value in times.items()), end=" ")
        kind, number = victim[:-1], victim[-1]
        named = f"{'rank' if kind == 'worker' else 'shard'} {number}"
        for name, process in others:
            log = self.log(group, name)
            self.assertIsNotNone(times[name], f"{name} still runs 15 s after {victim} died:\n{log}")
            self.assertLessEqual(times[name], LIMIT, f"{name} ended late:\n{log}")
            self.assertNotEqual(process.returncode, 0, f"{name} ended as if nothing had happened:\n{log}")
            self.assertGreater(process.returncode, 0, f"{name} died of a signal:\n{log}")
            self.assertIn(named, log, f"{name} does not name the lost one")
        self.assert_nothing_left(self.directory)

    def test_worker_server_mode(self):
        self.check("worker2", "server")

    def test_worker_all_reduce(self):
        self.check("worker1", "all_reduce")

    def test_worker_0(self):
        self.check("worker0", "server")

    def test_worker_compressed(self):
        self.check("worker1", "server", "powersgd:rank=4")

    def test_shard(self):
        self.check("shard1", "server")

    def test_shard_0_with_the_coordinator(self):
        self.check("shard0", "server")

    def test_under_weft_run(self):
        csv = self.path("report.csv")
        words = [harness.PROGRAMS.weft, "run", "-s", "2", "-n", "2", "--log-dir", self.path("logs"), "--", harness.PROGRAMS.trainer,
                 "--eval-every", "5", "--csv", csv]
        group = self.group("launcher")
        run = group.start("run", words)
        self.wait_for_steps(group, csv)
        children = subprocess.run(["pgrep", "-P", str(run.pid), "-x", "fashion_mnist"], stdout=subprocess.PIPE, text=True).stdout.split()
        self.assertEqual(len(children), 2, "weft run's workers")
        os.kill(int(children[1]), 9)
        started = time.monotonic()
        run.wait(timeout=20)
        self.assertNotEqual(run.returncode, 0)
        print(f"weft run ended after {time.monotonic() - started:.2f} s", end=" ")
        self.assert_nothing_left(self.directory)


if __name__ == "__main__":
    harness.main()
