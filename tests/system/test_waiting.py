"""test_waiting.py - waiting costs no CPU: with one worker stopped, every other process of the job sleeps.

The test counts the wake-ups of each process: heartbeats and their timers, a few a second on every machine. A process
that polls with sleeps wakes up thousands of times; one that never sleeps uses the whole second. The share of the CPU is
therefore bounded, too: far above that of heartbeats under a sanitizer and far below that of spinning. The CPU time is
printed; `weft bench waiting` measures it."""

import os
import signal
import time

import harness
import jobs

SECONDS = 5.0
WAKES_PER_SECOND = 5
SHARE = 0.003


def cost(process):
    return harness.cpu_seconds(process.pid), harness.wake_count(process.pid)


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
            before = {name: cost(process) for name, process in processes.items()}
            time.sleep(SECONDS)
            after = {name: cost(process) for name, process in processes.items()}
        finally:
            os.kill(stopped.pid, signal.SIGCONT)
        used = {name: (after[name][0] - before[name][0], after[name][1] - before[name][1]) for name in after}
        print(" ".join(f"{name} {1000 * cpu:.2f} ms {wakes} wakes" for name, (cpu, wakes) in used.items()), end=" ")
        for name, (cpu, wakes) in used.items():
            self.assertLessEqual(wakes, WAKES_PER_SECOND * SECONDS, f"{name} woke {wakes} times in {SECONDS} s of waiting")
            self.assertLessEqual(cpu, SHARE * SECONDS, f"{name} used {1000 * cpu:.1f} ms of CPU in {SECONDS} s of waiting")
        for name, process in processes.items():
            self.assertIsNone(process.poll(), f"{name} ended:\n{self.log(group, name)}")

    def test_server(self):
        self.check("server")

    def test_all_reduce(self):
        self.check("all_reduce")


if __name__ == "__main__":
    harness.main()
