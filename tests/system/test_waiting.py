"""test_waiting.py - waiting costs no CPU: with one worker stopped, every other process of the job sleeps.

At most 5 ms in 10 s, measured here over 5 s and after a moment in which what was in flight has settled."""

import os
import signal
import time

import harness
import jobs

SECONDS = 5.0
ALLOWED = 0.005 * SECONDS / 10


class Waiting(harness.JobTest):
    def check(self, mode):
        group = self.group()
        csv = self.path("report.csv")
        jobs.start_by_hand(harness.PROGRAMS, group, 2, 3, [harness.PROGRAMS.trainer, "--mode", mode, "--eval-every", "5", "--hidden", "256",
                                                          "--epochs", "100", "--csv", csv])
        self.wait_for_steps(group, csv)
        processes = dict(group.processes)
        stopped = processes.pop("worker1")
        os.kill(stopped.pid, signal.SIGSTOP)
        try:
            time.sleep(1.5)
            before = {name: harness.cpu_seconds(process.pid) for name, process in processes.items()}
            time.sleep(SECONDS)
            used = {name: harness.cpu_seconds(process.pid) - before[name] for name, process in processes.items()}
        finally:
            os.kill(stopped.pid, signal.SIGCONT)
        print(" ".join(f"{name} {1000 * value:.2f} ms" for name, value in used.items()), end=" ")
        for name, value in used.items():
            self.assertLessEqual(value, ALLOWED, f"{name} used {1000 * value:.1f} ms of CPU in {SECONDS} s of waiting")
        for name, process in processes.items():
            self.assertIsNone(process.poll(), f"{name} ended:\n{self.log(group, name)}")

    def test_server(self):
        self.check("server")

    def test_all_reduce(self):
        self.check("all_reduce")


if __name__ == "__main__":
    harness.main()
