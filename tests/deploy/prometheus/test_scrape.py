"""test_scrape.py - a real Prometheus scrapes a real job, on loopback.

The metrics arrive under their names, every alert and every panel can be evaluated, and a stopped worker shows
as a stall. Prometheus runs with deploy/prometheus/prometheus.yml; only the target, the intervals and the path
of the rules differ."""

import fnmatch
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import monitoring  # noqa: E402
from monitoring import DEPLOY, harness, read  # noqa: E402


def child_with(parent, variable):
    """Pid of the child of `parent` that has this NAME=VALUE in its environment; None: no child has."""
    with open(f"/proc/{parent}/task/{parent}/children") as file:
        for pid in file.read().split():
            with open(f"/proc/{pid}/environ", "rb") as environment:
                if variable.encode() in environment.read().split(b"\0"):
                    return int(pid)
    return None


class Scrape(monitoring.MonitoringTest):
    def start_job(self):
        """Starts a job of one shard and two workers. Returns the `weft run` and its HTTP address."""
        self.processes = self.group("job")
        run = self.processes.start("run", [
            harness.PROGRAMS.weft, "run", "-s", "1", "-n", "2", "--http", "--log-dir", self.path("logs"),
            "--", harness.PROGRAMS.trainer, "--mode", "server", "--hidden", "64", "--epochs", "10000",
            "--codec", "bf16"],
            {"WEFT_CLIENT_REPORT_PERIOD": "200ms", "WEFT_SNAPSHOT_FOLDER": self.path("snapshots"), "WEFT_SNAPSHOT_EVERY": "1s"})
        match = self.wait_for("the HTTP port",
                              lambda: re.search(r"http://(\S+)/status", self.log(self.processes, "run")))
        return run, match.group(1)

    def check_alerts(self):
        """Prometheus has evaluated each alert without an error. The alerts are those of the file."""
        def evaluated():
            groups = json.loads(self.get(f"http://{self.prometheus}/api/v1/rules"))["data"]["groups"]
            rules = [rule for group in groups for rule in group["rules"]]
            return rules if rules and all(rule["health"] != "unknown" for rule in rules) else None

        rules = self.wait_for("an evaluation of the alerts", evaluated)
        self.assertEqual([rule["name"] for rule in rules],
                         re.findall(r"- alert: (\w+)", read(DEPLOY, "prometheus", "alerts.yml")))
        for rule in rules:
            self.assertEqual((rule["health"], rule.get("lastError", "")), ("ok", ""), rule["name"])
            for metric in re.findall(r"\b(?:weft|process)_[a-z_]+", rule["query"]):
                if metric.startswith("weft_gpu_"):  # of node_exporter, which gets them from weft doctor
                    self.assertIn(metric, self.gpu_metrics(), rule["name"])
                elif metric != "weft_job":  # the label
                    self.assertTrue(self.query(metric), f"{rule['name']}: no target has {metric}")

    @staticmethod
    def gpu_metrics():
        nvml = os.path.join(harness.BUILD, "tests", "lib", "libfake_nvml.so")
        done = subprocess.run([harness.PROGRAMS.weft, "doctor", "--gpu-metrics"], env={**os.environ, "WEFT_NVML": nvml},
                              stdout=subprocess.PIPE, check=True, text=True, timeout=250)
        return set(re.findall(r"^# TYPE (\w+)", done.stdout, re.M))

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
        rules = json.loads(self.get(f"http://{self.prometheus}/api/v1/rules"))["data"]["groups"][0]["rules"]
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

    def check_documented(self, page):
        """The tables of docs/operations.md have every metric of the page, and no other."""
        names = set(re.findall(r"^# TYPE (\w+) ", page, re.M))
        rows = "\n".join(re.findall(r"^\| (`(?:weft|process)_.*?) \|", read(harness.ROOT, "docs", "operations.md"), re.M))
        patterns = re.findall(r"`([\w*]+)`", rows)
        self.assertEqual({name for name in names if not any(fnmatch.fnmatch(name, p) for p in patterns)}, set())
        self.assertEqual({p for p in patterns if not fnmatch.filter(names, p)}, set())

    def check_metrics_of_top(self, page, run):
        """weft top --metrics has the same metrics of job and workers, without HTTP."""
        with open(f"/proc/{child_with(run.pid, 'WEFT_RANK=1')}/environ") as file:
            words = dict(word.split("=", 1) for word in file.read().split("\0") if word.startswith("WEFT_"))
        done = subprocess.run([harness.PROGRAMS.weft, "top", "--metrics"], stdout=subprocess.PIPE, text=True, timeout=250,
                              env={**os.environ, **words})
        self.assertEqual(done.returncode, 0)
        checked = subprocess.run(["promtool", "check", "metrics"], input=done.stdout, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, text=True, timeout=250)
        self.assertEqual((checked.returncode, checked.stdout), (0, ""))
        heads = set(re.findall(r"^# (?:HELP|TYPE) .*$", done.stdout, re.M))
        self.assertEqual(heads - set(re.findall(r"^# .*$", page, re.M)), set())
        self.assertRegex(done.stdout, r'(?m)^weft_worker_steps_total\{.*,rank="1"\} [1-9]')

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
            if name not in ("weft_failover_seconds", "weft_shard_replicate_seconds"):  # of jobs with copies
                self.assertGreater(sum(int(count) for _, count in counts), 0, name)

    @unittest.skipUnless(shutil.which("promtool"), "promtool is not installed (package prometheus)")
    def test_page(self):
        run, address = self.start_job()
        rounds = re.compile(r"^weft_shard_rounds_total\{.*\} [1-9]", re.M)
        self.wait_for("a round", lambda: rounds.search(self.get(f"http://{address}/metrics")))
        steps = re.compile(r"^weft_worker_steps_total\{.*\} [1-9].*\nweft_worker_steps_total\{.*\} [1-9]", re.M)
        self.wait_for("steps of both workers", lambda: steps.search(self.get(f"http://{address}/metrics")))
        commits = re.compile(r"^weft_snapshot_commits_total\{.*\} [1-9]", re.M)
        self.wait_for("a snapshot", lambda: commits.search(self.get(f"http://{address}/metrics")))
        ratio = re.compile(r"^weft_codec_ratio\{weft_job=\".*\"\} 2$", re.M)  # bf16 for f32
        self.wait_for("the ratio of the codec", lambda: ratio.search(self.get(f"http://{address}/metrics")))
        page = self.get(f"http://{address}/metrics")
        done = subprocess.run(["promtool", "check", "metrics"], input=page, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=250)
        self.assertEqual((done.returncode, done.stdout), (0, ""))
        self.assertEqual(re.findall(r'[{,](?:job|instance)="', page), [])
        self.check_histograms(page)
        self.check_documented(page)
        self.check_metrics_of_top(page, run)
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
        # of the workers, the shard itself and weft run; this request
        connections = re.compile(r'^weft_connections\{listener="control"\} 4\nweft_connections\{listener="http"\} 1$', re.M)
        self.wait_for("four connections, and one for HTTP", lambda: connections.search(self.get(f"http://{address}/metrics")))
        size = float(re.search(r"^weft_snapshot_bytes_sum\{.*\} (\S+)$", page, re.M).group(1))
        self.assertGreater(size, 0)

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
