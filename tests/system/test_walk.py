"""test_walk.py - the walk of docs/operations.md: from installed programs to a job over three hosts, with one link cut
and one weftd killed. The hosts are network namespaces. Each command of the page runs here, except `weft doctor`,
which has tests of its own."""

import glob
import json
import os
import re
import subprocess
import sys

import harness
import jobs
import netns

HOSTS = {"shard0": "a", "shard1": "b", "worker0": "b", "worker1": "c"}
FETCH = "import sys, urllib.request as u; sys.stdout.write(u.urlopen(u.Request(sys.argv[1], headers={'Authorization': " \
        "'Bearer ' + sys.argv[2]}), timeout=10).read().decode())"
STEPS_OF_RANK_1 = r'(?m)^weft_worker_steps_total\{weft_job="walk",rank="1"\} [1-9]'


class Walk(harness.JobTest):
    def setUp(self):
        super().setUp()
        if not os.path.isdir(harness.DATA):
            self.skipTest(f"{harness.DATA}, the data of the trainer, is not here")
        reason = netns.allowed()
        if reason:
            self.skipTest(f"no network namespaces: {reason}")
        self.network = netns.Network(["a", "b", "c"], None)
        self.network.__enter__()
        self.addCleanup(self.network.__exit__)

    def install(self):
        """Step 1: the programs of the walk are installed ones."""
        done = subprocess.run(["meson", "install", "-C", harness.BUILD, "--no-rebuild", "--quiet"], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, env={**os.environ, "DESTDIR": self.path("root")})
        self.assertEqual(done.returncode, 0, done.stdout)
        self.programs = jobs.Programs(harness.BUILD)
        for name in ("weft", "weftd"):
            found = glob.glob(self.path("root", "**", "bin", name), recursive=True)
            self.assertEqual(len(found), 1, name)
            setattr(self.programs, name, found[0])

    def run_on(self, host, words, expect=0):
        """Standard output of a command on a host."""
        done = subprocess.run(self.network.command(host, words), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=100, env=self.environment)
        self.assertEqual(done.returncode, expect, f"{words}: {done.stdout}{done.stderr}")
        return done.stdout

    def weft(self, *words, expect=0):
        return self.run_on("a", [self.programs.weft, *words], expect)

    def members(self):
        """{(role, index): member} of weft top --json."""
        members = json.loads(self.weft("top", "--json"))["members"]
        return {(member["role"], member["index"]): member for member in members}

    def steps(self):
        """Steps that both workers have reported so far."""
        members = json.loads(self.weft("status", "--json"))["members"]
        reports = [member["report"] or {} for member in members if member["role"] == "worker"]
        return min((report.get("steps", 0) for report in reports), default=0)

    def start(self):
        self.environment = {**os.environ, "WEFT_JOB": "walk"}
        self.install()
        self.processes = self.group("walk")
        logs = self.processes.log_directory
        config = self.path("weft.ini")
        with open(config, "w") as file:
            file.write("[client]\ndeadline = 120s\nreport_period = 500ms\n[log]\nlevel = info\n")
        self.assertRegex(self.run_on("a", [self.programs.weftd, "--check-config", config]), r"client\.deadline += 120s")
        words = [self.programs.trainer, "--mode", "server", "--hidden", "64", "--epochs", "10000"]
        jobs.start_by_hand(self.programs, self.processes, 2, 2, words, netns.Placement(self.network, HOSTS),
                           {"WEFT_CONFIG": config, "WEFT_RECORDER_DIRECTORY": logs}, http=True)
        with open(os.path.join(logs, "ports")) as file:
            ports = dict(line.strip().split("=", 1) for line in file)
        self.environment.update(WEFT_COORDINATOR=ports["coordinator"], WEFT_SECRET_FILE=os.path.join(logs, "secret"))
        return ports["http"]

    def check_running(self, http):
        """Steps 4 and 5: the job is visible from host a."""
        self.wait_for("steps", lambda: self.steps() > 0, self.processes)
        table = self.weft("status")
        for name in ("rank 0", "rank 1", "shard 0", "shard 1"):
            self.assertRegex(table, rf"(?m)^{name} +ready ")
        token = subprocess.run([self.programs.weft, "status", "--http-token"], stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, text=True, env=self.environment).stdout.strip()
        self.wait_for("steps of rank 1 in /metrics", lambda: re.search(STEPS_OF_RANK_1, self.metrics(http, token)), self.processes)

    def metrics(self, http, token):
        return self.run_on("a", [sys.executable, "-c", FETCH, f"http://{http}/metrics", token or "none"])

    def check_cut(self):
        """Step 6: with the link of host c cut, the members that wait are visible; mended, the job goes on."""
        self.network.connect("c", False)
        stuck = self.wait_for("the waits of rank 0", self.waits_of_rank_0, self.processes)
        self.assertIn(" waits for ", stuck)
        silent = self.wait_for("the old report of rank 1", lambda: self.members()[("worker", 1)]["report_age_seconds"] > 3,
                               self.processes)
        self.assertTrue(silent)
        self.assertRegex(self.weft("top", "--once"), r"(?m)^rank 0: [\d.]+ s in ")
        before = self.steps()
        self.network.connect("c", True)
        self.wait_for("steps after the cut", lambda: self.steps() > before + 5, self.processes)

    def waits_of_rank_0(self):
        member = self.members()[("worker", 0)]
        return member["open"] if member["open_seconds"] > 1 else None

    def check_killed(self):
        """Step 7: every member ends and names the shard that was killed."""
        processes = dict(self.processes.processes)
        harness.kill(processes["shard1"])
        times = harness.ends([(name, process) for name, process in processes.items()], 60)
        self.assertNotIn(None, times.values(), times)
        for name in ("shard0", "worker0", "worker1"):
            self.assertEqual(processes[name].returncode, 1, name)
            self.assertRegex(self.log(self.processes, name), r"shard 1 \([^)]*\) lost", name)

    def check_after(self):
        """Step 8: what is left for a report."""
        logs = self.processes.log_directory
        report = self.weft("inspect", logs, expect=1)  # 1: a failure was found
        self.assertIn("lost shard 1 (", report)
        archive = self.path("support.tar.gz")
        self.weft("support", "--no-doctor", "--logs", logs, "--output", archive)
        names = subprocess.run(["tar", "-tzf", archive], stdout=subprocess.PIPE, text=True, check=True).stdout
        for name in ("logs-shard0.log", "logs-worker1.log", "configuration.txt"):
            self.assertIn(f"weft-support/{name}\n", names)
        with open(os.path.join(logs, "secret")) as file:
            secret = file.read().strip()
        text = subprocess.run(["tar", "-xzOf", archive], stdout=subprocess.PIPE, check=True).stdout
        self.assertNotIn(secret.encode(), text)

    def test_walk(self):
        http = self.start()
        self.check_running(http)
        self.check_cut()
        self.check_killed()
        self.check_after()


if __name__ == "__main__":
    harness.main()
