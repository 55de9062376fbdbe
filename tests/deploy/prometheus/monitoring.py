"""monitoring.py - a real Prometheus and Alertmanager for tests, with the configuration that deploy/ ships.

They run on loopback, or in a network namespace: `inside` are the words that run a command there. Only targets,
intervals, limits of the alerts, ports and paths differ from the shipped files."""

import json
import os
import re
import socket
import subprocess
import sys
import urllib.parse
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "system"))
import harness  # noqa: E402

DEPLOY = os.path.join(harness.ROOT, "deploy")
WAIT_SECONDS = 60
TARGET, ALERTMANAGER, WEBHOOK = "127.0.0.1:9400", "127.0.0.1:9093", "http://127.0.0.1:9095/alerts"
FETCH = "import sys, urllib.request as u; sys.stdout.write(u.urlopen(sys.argv[1], timeout=10).read().decode())"
RECEIVE = """
import http.server, sys
class Receiver(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        with open(sys.argv[2], "ab") as file:
            file.write(self.rfile.read(int(self.headers["Content-Length"])) + b"\\n")
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Receiver).serve_forever()
"""


def read(*parts):
    with open(os.path.join(*parts), encoding="utf-8") as file:
        return file.read()


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class MonitoringTest(harness.JobTest):
    inside = []  # words before a command

    def setUp(self):
        super().setUp()
        if not os.path.isdir(harness.DATA):
            self.skipTest(f"{harness.DATA}, the data of the trainer, is not here")

    def get(self, url):
        """The body of a page; OSError: there is none."""
        if not self.inside:
            with urllib.request.urlopen(url, timeout=10) as reply:
                return reply.read().decode()
        done = subprocess.run([*self.inside, sys.executable, "-c", FETCH, url], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=30)
        if done.returncode != 0:
            raise OSError(done.stderr.strip().splitlines()[-1])
        return done.stdout

    def wait_for(self, what, condition):
        return super().wait_for(what, condition, self.processes, WAIT_SECONDS)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)
        return self.path(name)

    def replace(self, text, *pairs):
        """Replaces each word, which must be there."""
        for old, new in pairs:
            self.assertIn(old, text)
            text = text.replace(old, new)
        return text

    def rules(self, seconds):
        """The shipped alerts, with limits of at most `seconds` for ages; None: unchanged."""
        path = os.path.join(DEPLOY, "prometheus", "alerts.yml")
        if seconds is None:
            return path
        text = re.sub(r"> \d\d+$", f"> {seconds}", read(path), flags=re.M)
        return self.write("alerts.yml", re.sub(r"for: \d+[sm]", "for: 1s", text))

    def start_prometheus(self, target, alert_seconds=None, alertmanager=None, token=None):
        """Starts Prometheus with the shipped configuration. Sets self.prometheus, its address."""
        text = self.replace(read(DEPLOY, "prometheus", "prometheus.yml"), (TARGET, target), ("interval: 15s", "interval: 1s"),
                            ("- alerts.yml", "- " + self.rules(alert_seconds)),
                            (ALERTMANAGER, alertmanager or f"127.0.0.1:{free_port()}"))
        if token:
            text = self.replace(text, ("  - job_name: weft\n", "  - job_name: weft\n    authorization: {credentials_file: "
                                       + self.write("token", token) + "}\n"))
        self.prometheus = f"127.0.0.1:{free_port()}"
        self.processes.start("prometheus", [*self.inside, "prometheus", "--config.file=" + self.write("prometheus.yml", text),
                                            "--storage.tsdb.path=" + self.path("tsdb"),
                                            "--web.listen-address=" + self.prometheus])
        self.wait_for("Prometheus", lambda: self.get(f"http://{self.prometheus}/-/ready"))

    def start_alertmanager(self):
        """Starts Alertmanager with the shipped configuration, and a webhook that writes to a file. Returns its address."""
        port, address = free_port(), f"127.0.0.1:{free_port()}"
        self.processes.start("webhook", [*self.inside, sys.executable, "-c", RECEIVE, str(port), self.path("messages")])
        text = self.replace(read(DEPLOY, "prometheus", "alertmanager.yml"), (WEBHOOK, f"http://127.0.0.1:{port}/alerts"))
        text = self.replace(text, ("group_wait: 10s", "group_wait: 1s\n  group_interval: 1s"))
        self.processes.start("alertmanager", [
            *self.inside, "prometheus-alertmanager", "--config.file=" + self.write("alertmanager.yml", text),
            "--storage.path=" + self.path("alertmanager-data"), "--web.listen-address=" + address,
            "--cluster.listen-address="])
        self.wait_for("Alertmanager", lambda: self.get(f"http://{address}/-/ready"))
        return address

    def messages(self):
        """{(status, alert)} of all alerts that the webhook has received."""
        if not os.path.exists(self.path("messages")):
            return set()
        complete = read(self.path("messages")).rpartition("\n")[0]  # the receiver may be writing the last line
        return {(alert["status"], alert["labels"]["alertname"])
                for line in complete.splitlines() if line for alert in json.loads(line)["alerts"]}

    def query(self, expression):
        """[(labels, value)] of an expression; a refused expression raises an error."""
        words = urllib.parse.urlencode({"query": expression})
        data = json.loads(self.get(f"http://{self.prometheus}/api/v1/query?{words}"))
        self.assertEqual(data["status"], "success")
        return [(row["metric"], float(row["value"][1])) for row in data["data"]["result"]]
