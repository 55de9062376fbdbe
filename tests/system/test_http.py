"""test_http.py - HTTP of weftd apart from the control plane: the token, the health pages, and foreign clients that hold connections."""

import os
import re
import resource
import socket
import subprocess
import time
import urllib.error
import urllib.request

import harness

WORKER = os.path.join(harness.BUILD, "examples", "02_push_pull")
SECRET = "a-secret-of-32-characters-or-so"
SECONDS = 60
FAKE_NVML = os.path.join(harness.BUILD, "tests", "lib", "libfake_nvml.so")


def get(address, path, token=None):
    """(code, body)"""
    request = urllib.request.Request(f"http://{address}{path}", headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


class Http(harness.JobTest):
    def start(self, words=(), descriptors=None):
        """Shard 0 of a job of one worker. Returns its group, the address of the coordinator and of HTTP."""
        group = self.group()
        ports = self.path("ports")
        self.common = {"WEFT_JOB": "http", "WEFT_SECRET": SECRET}
        weftd = [harness.PROGRAMS.weftd, "--workers", "1", "--port-file", ports, "--http-port", "0", *words]
        if descriptors:
            weftd = ["sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh", *weftd]
        group.start("shard0", weftd, self.common)
        coordinator = harness.jobs.wait_for_port_file(ports, group)
        with open(ports) as file:
            http = next(line.strip()[len("http="):] for line in file if line.startswith("http="))
        return group, coordinator, http

    def run_worker(self, group, coordinator):
        group.start("worker0", [WORKER], {**self.common, "WEFT_COORDINATOR": coordinator, "WEFT_RANK": "0"})
        times = harness.ends(group.processes, SECONDS)
        logs = "\n".join(self.log(group, name) for name, _ in group.processes)
        self.assertEqual([process.returncode for _, process in group.processes], [0, 0], f"{times}\n{logs}")
        return logs

    def token(self):
        done = subprocess.run([harness.PROGRAMS.weft, "status", "--http-token"], stdout=subprocess.PIPE, text=True, env={**os.environ, "WEFT_SECRET": SECRET})
        self.assertEqual(done.returncode, 0)
        self.assertRegex(done.stdout, r"\A[0-9a-f]{64}\n\Z")
        return done.stdout.strip()

    def test_token(self):
        """Beyond loopback pages need the token, and health pages are words without names."""
        group, coordinator, http = self.start(["--listen", "0.0.0.0"])
        http = "127.0.0.1:" + http.rsplit(":", 1)[1]
        coordinator = "127.0.0.1:" + coordinator.rsplit(":", 1)[1]
        token = self.token()
        for path in ("/metrics", "/status", "/nothing"):
            for wrong in (None, SECRET, token[:-1] + ("0" if token[-1] != "0" else "1")):
                code, body = get(http, path, wrong)
                self.assertEqual(code, 401, path)
                self.assertNotIn("shard", body)
        self.assertEqual(get(http, "/nothing", token)[0], 404)
        code, body = get(http, "/metrics", token)
        self.assertEqual(code, 200)
        self.assertIn('weft_job_state{weft_job="http",state="joining"} 1', body)
        self.assertIn('"role":"shard"', get(http, "/status", token)[1])
        self.assertEqual(get(http, "/livez"), (200, "ok\n"))
        self.assertEqual(get(http, "/healthz"), (200, "ok\n"))
        self.assertEqual(get(http, "/readyz"), (503, "not ok\n"))
        self.assertRegex(get(http, "/readyz", token)[1], "^not ok: (joining|connecting)\n")
        self.run_worker(group, coordinator)

    def test_health_pages_on_loopback(self):
        group, coordinator, http = self.start()
        limit = time.monotonic() + SECONDS
        while get(http, "/startupz")[0] != 200:  # it joins, and its engines open
            self.assertLess(time.monotonic(), limit)
        self.assertEqual(get(http, "/readyz")[0], 503)
        self.assertEqual(get(http, "/metrics")[0], 200)
        self.run_worker(group, coordinator)

    def status(self, coordinator):
        done = subprocess.run([harness.PROGRAMS.weft, "status", coordinator], stdout=subprocess.PIPE, text=True, env={**os.environ, **self.common})
        self.assertEqual(done.returncode, 0)
        return done.stdout

    def notify(self, coordinator, mode):
        """Exit status of `weft doctor --notify` on a host whose GPUs are as `mode` (tests/lib/fake_nvml.c)."""
        fake = {"WEFT_NVML": FAKE_NVML, "FAKE_NVML": mode}
        done = subprocess.run([harness.PROGRAMS.weft, "doctor", "--notify", coordinator], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, env={**os.environ, **self.common, **fake})
        return done.returncode, done.stdout

    def test_gpus_that_fail(self):
        """The findings of a host are in the log once, in the status and in a metric, until it reports others."""
        group, coordinator, http = self.start()
        for _ in range(2):
            self.assertEqual(self.notify(coordinator, "failed")[0], 3)
        self.assertRegex(self.status(coordinator), r"host \S+: GPU 2: the driver has lost this GPU; advice: restart the host")
        self.wait_for("the metric", lambda: 'weft_job_sick_hosts{weft_job="http"} 1\n' in get(http, "/metrics")[1], group)
        log = self.log(group, "shard0")
        self.assertEqual(len(re.findall(r"job http: host \S+ with shard 0: GPU 0: 2 uncorrected memory errors.*; advice: end the work on this GPU", log)), 1, log)
        code, text = self.notify(coordinator, "refuses")  # unknown is not well: what the host has sent stays
        self.assertEqual(code, 0)
        self.assertIn("cannot be read", text)
        self.assertIn("has lost this GPU", self.status(coordinator))
        self.assertEqual(self.notify(coordinator, "healthy")[0], 1)
        self.assertNotIn("has lost this GPU", self.status(coordinator))
        self.assertRegex(self.status(coordinator), r"host \S+: GPU 1: a memory row waits for its remapping")
        code, text = self.notify("127.0.0.1:1", "failed")
        self.assertEqual(code, 3)
        self.assertIn("the coordinator was not notified: no process listens at 127.0.0.1:1", text)

    def test_half_open_requests(self):
        """With few descriptors, 400 clients that send half a request do not keep the status and a worker out."""
        group, coordinator, http = self.start(descriptors=200)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 2000)), hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        host, port = http.rsplit(":", 1)
        held = []
        for _ in range(400):
            client = socket.create_connection((host, int(port)), timeout=SECONDS)
            self.addCleanup(client.close)
            client.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
            held.append(client)
        self.assertIn("job http is joining", self.status(coordinator))
        logs = self.run_worker(group, coordinator)
        self.assertIn("for a newer connection, since 64 are open", logs)
        self.assertLessEqual(logs.count("http:"), 3, logs)  # once, and a count every 10 s

    def test_foreign_clients_on_the_control_port(self):
        """1,500 connections that never send Hello: a worker still joins, and the log has a count."""
        group, coordinator, http = self.start()
        host, port = coordinator.rsplit(":", 1)
        held = []
        for _ in range(1500):
            held.append(socket.create_connection((host, int(port)), timeout=SECONDS))
            if len(held) > 300:
                held.pop(0).close()
        logs = self.run_worker(group, coordinator)
        for client in held:
            client.close()
        self.assertLessEqual(logs.count("refused: too many connections"), 20)
        self.assertIn("127.0.0.1:", logs)


if __name__ == "__main__":
    harness.main()
