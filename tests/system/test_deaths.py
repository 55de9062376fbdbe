"""test_deaths.py - a killed process ends the job on all ranks: within seconds, with its name in the error, without processes or files left.

The processes are started one by one, so that no launcher ends them instead of the library; then again through
`weft run`."""

import os
import re
import subprocess
import time

import harness
import jobs

LIMIT = 2.0  # seconds from the death to the last end
OUTLIVED = os.path.join(harness.BUILD, "tests", "client", "outlived")
ENDED = re.compile(r"^ended (\w+) after (\d+) ms: (.*)$", re.MULTILINE)


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

    def heard(self, log):
        """Seconds until the remaining rank reports the death; its sentence names the dead rank."""
        ends = ENDED.findall(log)
        self.assertEqual(len(ends), 1, log)
        status, took_ms, text = ends[0]
        self.assertEqual(status, "WEFT_ERR_PEER_LOST", log)
        self.assertIn("rank 1 (", text)
        self.assertLessEqual(int(took_ms), 300 + 1000 * LIMIT, log) # it kills itself after 300 ms

    def test_a_child_outlives_its_trainer(self):
        """The child holds copies of all descriptors of the trainer. The job is started by hand, then through weft run."""
        for backend in ("auto", "tcp"):
            for kind in ("exec", "fork"):
                with self.subTest(backend=backend, kind=kind):
                    group = self.group(f"child-{kind}-{backend}")
                    ports = group.log_directory + "/ports"
                    group.start("weftd", [harness.PROGRAMS.weftd, "--job", "outlived", "--workers", "2", "--port-file", ports],
                                {"WEFT_TRANSPORT_BACKEND": backend})
                    coordinator = jobs.wait_for_port_file(ports, group)
                    common = {"WEFT_JOB": "outlived", "WEFT_COORDINATOR": coordinator, "WEFT_TRANSPORT_BACKEND": backend}
                    for rank in range(2):
                        group.start(f"worker{rank}", [OUTLIVED, kind], {**common, "WEFT_RANK": str(rank)})
                    self.assertIsNotNone(harness.ends([group.processes[1]], 25)["worker0"])
                    self.heard(self.log(group, "worker0"))

                    name = f"run-{kind}-{backend}"
                    for shards in (0, 1): # in weft run, or in its weftd
                        self.run_job(shards, 2, [OUTLIVED, kind], f"{name}-{shards}", environment={"WEFT_TRANSPORT_BACKEND": backend})
                        with open(self.path(f"{name}-{shards}", "rank0.log")) as file:
                            self.heard(file.read())

    def test_executed_children_inherit_nothing(self):
        for backend in ("auto", "tcp"): # connections of UCX are not those of weft
            for shards in (0, 1):
                with self.subTest(backend=backend, shards=shards):
                    name = f"inherit-{backend}-{shards}"
                    done = self.run_job(shards, 2, [OUTLIVED, "descriptors"], name, environment={"WEFT_TRANSPORT_BACKEND": backend})
                    counts = re.findall(r"descriptors (\d+) (\d+)", done.stdout)
                    self.assertGreaterEqual(len(counts), 2, done.stdout)
                    for before, after in counts:
                        self.assertEqual(before, after, done.stdout)


if __name__ == "__main__":
    harness.main()
