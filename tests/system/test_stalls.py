"""test_stalls.py - a stopped rank and a cut link between two ranks show in the log, the status, the health pages and the metrics."""

import json
import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request

import harness
import netns

SECONDS = 60
TRAINER = ["--mode", "all_reduce", "--epochs", "1000", "--eval-every", "1000", "--hidden", "64"]


class Stalls(harness.JobTest):
    def setUp(self):
        super().setUp()
        if not os.path.isdir(harness.DATA):
            self.skipTest(f"{harness.DATA}, the data of the trainer, is not here")

    def wait_for(self, group, what, condition):
        """The first true value of condition()."""
        limit = time.monotonic() + SECONDS
        while time.monotonic() < limit:
            value = condition()
            if value:
                return value
            for name, process in group.processes:
                self.assertIsNone(process.poll(), f"{name} ended before: {what}\n{self.log(group, name)}")
            time.sleep(0.1)
        self.fail(f"not seen within {SECONDS} s: {what}\n{self.log(group, 'shard0')}")

    @staticmethod
    def get(address, path):
        try:
            with urllib.request.urlopen(f"http://{address}{path}", timeout=SECONDS) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def test_a_stopped_rank(self):
        group, ports = self.group(), self.path("ports")
        job = {"WEFT_JOB": "stall"}
        group.start("shard0", [harness.PROGRAMS.weftd, "--workers", "2", "--port-file", ports, "--http-port", "0"], job)
        coordinator = harness.jobs.wait_for_port_file(ports, group)
        with open(ports) as file:
            http = re.search(r"http=(\S+)", file.read()).group(1)
        csv = self.path("report.csv")
        for rank in range(2):
            group.start(f"worker{rank}", [harness.PROGRAMS.trainer, *TRAINER, "--eval-every", "5", "--csv", csv],
                        {**job, "WEFT_RANK": str(rank), "WEFT_COORDINATOR": coordinator})
        self.wait_for_steps(group, csv)
        self.wait_for(group, "readiness", lambda: self.get(http, "/readyz")[0] == 200)
        worker1 = dict(group.processes)["worker1"]
        os.kill(worker1.pid, signal.SIGSTOP)
        try:
            def status(*words):
                return subprocess.run([harness.PROGRAMS.weft, "status", *words, coordinator], stdout=subprocess.PIPE, text=True, env={**os.environ, **job}).stdout
            culprit = rf"rank 1 \(\S+, pid {worker1.pid}\) does not answer: stopped, or cut off"
            self.wait_for(group, "weft status", lambda: re.search(rf"^stalled for .*rank 0 .* has waited .* in all_.*{culprit}", status(), re.M))
            self.assertRegex(json.loads(status("--json"))["stall_text"], culprit)
            self.wait_for(group, "/readyz", lambda: self.get(http, "/readyz")[0] == 503)  # a published copy follows
            self.assertRegex(self.get(http, "/readyz")[1], "^stalled for .*" + culprit)
            code, text = self.get(http, "/healthz")
            self.assertEqual(code, 200)
            self.assertRegex(text, "^stalled for .*" + culprit)
            self.assertEqual(self.get(http, "/livez")[0], 200)
            self.assertRegex(self.get(http, "/metrics")[1], r'weft_job_stall_seconds\{weft_job="stall"\} [1-9]')
        finally:
            os.kill(worker1.pid, signal.SIGCONT)
        self.wait_for(group, "the end of the stall", lambda: "job stall continues after" in self.log(group, "shard0"))
        self.wait_for(group, "readiness", lambda: self.get(http, "/readyz")[0] == 200)
        log = self.log(group, "shard0")
        self.assertEqual(len(re.findall(r"job stall is stalled: .*" + culprit, log)), 1, log)

    def start_on_hosts(self, network, workers, environment):
        """A job in the middle of training, one process in each namespace."""
        group = self.group()
        csv = self.path("report.csv")
        trainer = [harness.PROGRAMS.trainer, *TRAINER, "--eval-every", "5", "--csv", csv]
        harness.jobs.start_by_hand(harness.PROGRAMS, group, 1, workers, trainer, network, {"WEFT_TRANSPORT_BACKEND": "tcp", **environment})
        self.wait_for_steps(group, csv)
        return group

    @staticmethod
    def cut(network, one, other):
        for here, there in ((one, other), (other, one)):
            netns.run("ip", "-n", network.namespace(here), "route", "add", "blackhole", network.address(there) + "/32")

    def need_network(self):
        reason = netns.allowed()
        if reason:
            self.skipTest(f"no network namespaces: {reason}")

    def test_a_member_that_is_cut_off(self):
        """Rank 1 loses all others, and no connection closes: it ends by its own clock, and the others by the coordinator's."""
        self.need_network()
        with netns.Network(["shard0", "worker0", "worker1"], "10gbit") as network:
            group = self.start_on_hosts(network, 2, {"WEFT_SERVER_HEARTBEAT": "4s"})
            self.cut(network, "worker1", "shard0")
            self.cut(network, "worker1", "worker0")
            times = harness.ends(group.processes, SECONDS)
            logs = {name: self.log(group, name) for name in times}
            self.assertNotIn(None, times.values(), logs)
            self.assertRegex(logs["worker1"], r"lost shard 0 .* the network to it is cut: no message for \d+ s")
            self.assertRegex(logs["shard0"], r"rank 1 .* lost: silent for 4 s")

    def test_a_cut_link(self):
        """Ranks 1 and 2 lose each other; the coordinator still reaches both."""
        self.need_network()
        with netns.Network(["shard0", "worker0", "worker1", "worker2"], "10gbit") as network:
            group = self.start_on_hosts(network, 3, {})
            self.cut(network, "worker1", "worker2")
            found = self.wait_for(group, "the stall", lambda: re.search(r"is stalled: (.*)", self.log(group, "shard0")))
            self.assertRegex(found.group(1), r"rank [12] .* and rank [12] .* wait for each other.*: see the link between these two hosts")


if __name__ == "__main__":
    harness.main()
