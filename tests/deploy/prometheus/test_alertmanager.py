"""test_alertmanager.py - a cut link between hosts fires alerts, which Alertmanager sends to a webhook.

Three network namespaces are the hosts of a shard and two workers; Prometheus and Alertmanager run beside the shard.
Both run with the configuration of deploy/prometheus; the limits of the alerts are shorter."""

import os
import re
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import monitoring  # noqa: E402
from monitoring import harness, read  # noqa: E402
import jobs  # noqa: E402
import netns  # noqa: E402

LIMIT_SECONDS = 3


class CutLink(monitoring.MonitoringTest):
    def setUp(self):
        super().setUp()
        for program in ("prometheus", "prometheus-alertmanager"):
            if not shutil.which(program):
                self.skipTest(f"{program} is not installed (package {program})")
        reason = netns.allowed()
        if reason:
            self.skipTest(f"no network namespaces: {reason}")
        self.network = netns.Network(["a", "b", "c"], None)
        self.network.__enter__()
        self.addCleanup(self.network.__exit__)
        self.inside = self.network.command("a", [])

    def start_job(self):
        """One shard on host a, a worker on b and on c. Returns the address of the shard's HTTP port."""
        self.processes = self.group("cut")
        place = netns.Placement(self.network, {"shard0": "a", "worker0": "b", "worker1": "c"})
        words = [harness.PROGRAMS.trainer, "--mode", "server", "--hidden", "64", "--epochs", "10000"]
        jobs.start_by_hand(harness.PROGRAMS, self.processes, 1, 2, words, place, {"WEFT_CLIENT_REPORT_PERIOD": "500ms"},
                           http=True)
        ports = read(self.processes.log_directory, "ports")
        return re.search(r"^http=(\S+)$", ports, re.M).group(1)

    def token(self):
        """The token of HTTP beyond loopback; None: the pages need none."""
        done = subprocess.run([harness.PROGRAMS.weft, "status", "--http-token"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                              text=True, env={**os.environ, "WEFT_SECRET_FILE": os.path.join(self.processes.log_directory, "secret")})
        return done.stdout.strip() if done.returncode == 0 else None

    def test_cut_link(self):
        address = self.start_job()
        alertmanager = self.start_alertmanager()
        self.start_prometheus(address, LIMIT_SECONDS, alertmanager, self.token())
        self.wait_for("steps of both workers", lambda: len(self.query("weft_worker_steps_total > 0")) == 2)
        self.wait_for("quiet alerts", lambda: not self.query('ALERTS{alertname="WeftJobStalled"}'))
        self.network.connect("c", False)
        expected = {("firing", name) for name in ("WeftJobStalled", "WeftOperationStalled")}
        self.wait_for("alerts of the cut link", lambda: expected <= self.messages())
        self.network.connect("c", True)
        self.wait_for("the end of the alerts", lambda: ("resolved", "WeftJobStalled") in self.messages())


if __name__ == "__main__":
    harness.main()
