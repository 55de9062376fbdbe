"""test_scrape.py - a real Prometheus scrapes a real job, on loopback.

The metrics arrive under their names, every alert and every panel can be evaluated, and a stopped worker shows
as a stall. Prometheus runs with deploy/prometheus/prometheus.yml; only the target, the intervals and the path
of the rules differ."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import unittest
import urllib.parse
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "system"))
import harness  # noqa: E402

DEPLOY = os.path.join(harness.ROOT, "deploy")
WAIT_SECONDS = 60
TARGET = "127.0.0.1:9400"


def read(*parts):
    with open(os.path.join(*parts), encoding="utf-8") as file:
        return file.read()


def get(url):
    with urllib.request.urlopen(url, timeout=10) as reply:
        return reply.read().decode()


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def child_with(parent, variable):
    """Pid of the child of `parent` that has this NAME=VALUE in its environment; None: no child has."""
    with open(f"/proc/{parent}/task/{parent}/children") as file:
        for pid in file.read().split():
            with open(f"/proc/{pid}/environ", "rb") as environment:
                if variable.encode() in environment.read().split(b"\0"):
                    return int(pid)
    return None


class Scrape(harness.JobTest):
    def setUp(self):
        super().setUp()
        if not os.path.isdir(harness.DATA):
            self.skipTest(f"{harness.DATA}, the data of the trainer, is not here")

    def wait_for(self, what, condition):
        """Returns the first true value of condition(); OSError counts as false."""
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            try:
                value = condition()
            except OSError:
                value = None
            if value:
                return value
            for name, process in self.processes.processes:
                if process.poll() is not None:
                    self.fail(f"{name} ended before {what}:\n{self.log(self.processes, name)}")
            time.sleep(0.1)
        self.fail(f"not seen within {WAIT_SECONDS} s: {what}")

    def start_job(self):
        """Starts a job of one shard and two workers. Returns the `weft run` and its HTTP address."""
        self.processes = self.group("job")
        run = self.processes.start("run", [
            harness.PROGRAMS.weft, "run", "-s", "1", "-n", "2", "--http", "--log-dir", self.path("logs"),
            "--", harness.PROGRAMS.trainer, "--mode", "server", "--hidden", "64", "--epochs", "10000"],
            {"WEFT_CLIENT_REPORT_PERIOD": "200ms"})
        match = self.wait_for("the HTTP port",
                              lambda: re.search(r"http://(\S+)/status", self.log(self.processes, "run")))
        return run, match.group(1)

    def start_prometheus(self, target):
        """Starts Prometheus with the shipped configuration. Returns its address."""
        text = read(DEPLOY, "prometheus", "prometheus.yml")
        self.assertIn(TARGET, text)
        text = text.replace(TARGET, target).replace("interval: 15s", "interval: 1s")
        text = text.replace("alerts.yml", os.path.join(DEPLOY, "prometheus", "alerts.yml"))
        with open(self.path("prometheus.yml"), "w", encoding="utf-8") as file:
            file.write(text)
        address = f"127.0.0.1:{free_port()}"
        self.processes.start("prometheus", ["prometheus", "--config.file=" + self.path("prometheus.yml"),
                                            "--storage.tsdb.path=" + self.path("tsdb"),
                                            "--web.listen-address=" + address])
        self.wait_for("Prometheus", lambda: get(f"http://{address}/-/ready"))
        self.prometheus = address
        return address

    def query(self, expression):
        """[(labels, value)] of an expression; a refused expression raises an error."""
        words = urllib.parse.urlencode({"query": expression})
        data = json.loads(get(f"http://{self.prometheus}/api/v1/query?{words}"))
        self.assertEqual(data["status"], "success")
        return [(row["metric"], float(row["value"][1])) for row in data["data"]["result"]]

    def check_alerts(self):
        """Prometheus has evaluated each alert without an error. The alerts are those of the file."""
        def evaluated():
            groups = json.loads(get(f"http://{self.prometheus}/api/v1/rules"))["data"]["groups"]
            rules = [rule for group in groups for rule in group["rules"]]
            return rules if rules and all(rule["health"] != "unknown" for rule in rules) else None

        rules = self.wait_for("an evaluation of the alerts", evaluated)
        self.assertEqual([rule["name"] for rule in rules],
                         re.findall(r"- alert: (\w+)", read(DEPLOY, "prometheus", "alerts.yml")))
        for rule in rules:
            self.assertEqual((rule["health"], rule.get("lastError", "")), ("ok", ""), rule["name"])
            for metric in re.findall(r"\b(?:weft|process)_[a-z_]+", rule["query"]):
                if metric != "weft_job":  # the label
                    self.assertTrue(self.query(metric), f"{rule['name']}: no target has {metric}")

    def check_dashboard(self):
        """Each query of the dashboard has a result. A rate needs two scrapes."""
        panels = json.loads(read(DEPLOY, "grafana", "weft.json"))["panels"]
        self.assertGreater(len(panels), 5)
        for panel in panels:
            for target in panel["targets"]:
                expression = target["expr"].replace("$weft_job", ".*")
                self.wait_for(f"a value of the panel '{panel['title']}'",
                              lambda expression=expression: self.query(expression))

    def check_stall(self, run):
        """With a stopped worker the alert of a stall with a shorter limit is true until it goes on."""
        rules = json.loads(get(f"http://{self.prometheus}/api/v1/rules"))["data"]["groups"][0]["rules"]
        shipped = next(rule["query"] for rule in rules if rule["name"] == "WeftJobStalled")
        stalled = shipped.replace("> 60", "> 5")
        self.assertNotEqual(stalled, shipped)
        self.wait_for("progress", lambda: not self.query(stalled))
        worker = child_with(run.pid, "WEFT_RANK=1")
        self.assertIsNotNone(worker)
        os.kill(worker, signal.SIGSTOP)
        try:
            rows = self.wait_for("the stall", lambda: self.query(stalled))
            self.assertEqual([list(labels) for labels, _ in rows], [["weft_job"]])
        finally:
            if run.poll() is None:
                os.kill(worker, signal.SIGCONT)
        self.wait_for("the end of the stall", lambda: not self.query(stalled))

    def check_histograms(self, page):
        """The buckets of each histogram ascend to the count of its durations."""
        names = re.findall(r"^# TYPE (\w+) histogram$", page, re.M)
        self.assertGreaterEqual(len(names), 5)
        for name in names:
            rows = re.findall(rf'^{name}_bucket\{{(.*),le="(\S+)"\}} (\d+)$', page, re.M)
            counts = re.findall(rf"^{name}_count\{{(.*)\}} (\d+)$", page, re.M)
            sums = re.findall(rf"^{name}_sum\{{(.*)\}} (\S+)$", page, re.M)
            self.assertEqual([labels for labels, _ in counts], [labels for labels, _ in sums])
            self.assertEqual({labels for labels, _, _ in rows}, {labels for labels, _ in counts})
            for labels, count in counts:
                buckets = [(float(bound), int(below)) for of, bound, below in rows if of == labels]
                self.assertEqual(buckets, sorted(buckets))
                self.assertEqual([below for _, below in buckets], sorted(below for _, below in buckets))
                self.assertEqual(buckets[-1], (float("inf"), int(count)))
            self.assertGreater(sum(int(count) for _, count in counts), 0, name)

    @unittest.skipUnless(shutil.which("promtool"), "promtool is not installed (package prometheus)")
    def test_page(self):
        _, address = self.start_job()
        rounds = re.compile(r"^weft_shard_rounds_total\{.*\} [1-9]", re.M)
        self.wait_for("a round", lambda: rounds.search(get(f"http://{address}/metrics")))
        steps = re.compile(r"^weft_worker_steps_total\{.*\} [1-9].*\nweft_worker_steps_total\{.*\} [1-9]", re.M)
        self.wait_for("steps of both workers", lambda: steps.search(get(f"http://{address}/metrics")))
        page = get(f"http://{address}/metrics")
        done = subprocess.run(["promtool", "check", "metrics"], input=page, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stdout), (0, ""))
        self.assertEqual(re.findall(r'[{,](?:job|instance)="', page), [])
        self.check_histograms(page)
        for name in ("steps", "wait_seconds", "operations", "sent_bytes", "exposed_seconds"):
            rows = re.findall(rf'^weft_worker_{name}_total\{{.*,rank="(\d)"\}} (\S+)$', page, re.M)
            self.assertEqual(sorted(rank for rank, _ in rows), ["0", "1"], name)
            for _, value in rows:
                self.assertGreater(float(value), 0, name)
        values = dict(re.findall(r"^(\w+) (\S+)$", page, re.M))
        self.assertLess(abs(time.time() - float(values["process_start_time_seconds"])), 3600)
        self.assertLess(0, int(values["process_open_fds"]))
        self.assertLess(int(values["process_open_fds"]), int(values["process_max_fds"]))
        self.assertLess(1 << 20, int(values["process_resident_memory_bytes"]))

    @unittest.skipUnless(shutil.which("prometheus"), "prometheus is not installed (package prometheus)")
    def test_prometheus(self):
        run, address = self.start_job()
        self.start_prometheus(address)
        self.wait_for("up", lambda: self.query('up{job="weft"} == 1'))
        self.wait_for("rounds", lambda: self.query("weft_shard_rounds_total > 0"))
        ready = 'weft_job_members{role="worker",state="ready"} == 2'
        self.wait_for("two ready workers", lambda: self.query(ready))
        self.assertTrue(self.query('weft_build_info{version!=""} == 1'))
        self.assertEqual(self.query('{exported_job!=""}'), [])
        self.check_alerts()
        self.check_dashboard()
        self.check_stall(run)


if __name__ == "__main__":
    harness.main()
