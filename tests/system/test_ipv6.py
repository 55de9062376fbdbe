"""test_ipv6.py - jobs on a host with IPv6 alone: a network namespace whose loopback has ::1 and no IPv4 address."""

import os
import subprocess

import harness

import netns  # noqa: E402

EXAMPLE = os.path.join(harness.BUILD, "examples", "01_all_reduce")


class Ipv6(harness.JobTest):
    def setUp(self):
        super().setUp()
        reason = netns.allowed()
        if reason:
            self.skipTest(f"cannot make namespaces: {reason}")
        self.name = f"weft-ipv6-{os.getpid()}"
        netns.run("ip", "netns", "add", self.name)
        self.addCleanup(subprocess.run, ["ip", "netns", "del", self.name])
        self.inside = ["ip", "netns", "exec", self.name]
        netns.run(*self.inside, "ip", "link", "set", "lo", "up")
        netns.run(*self.inside, "ip", "address", "del", "127.0.0.1/8", "dev", "lo")
        shown = subprocess.run([*self.inside, "ip", "-6", "address", "show", "dev", "lo"], stdout=subprocess.PIPE, text=True, check=True).stdout
        if "::1/128" not in shown:
            self.skipTest("this kernel has no IPv6")

    def check(self, shards, backend):
        with self.subTest(shards=shards, backend=backend):
            command = [*self.inside, harness.PROGRAMS.weft, "run", "-s", str(shards), "-n", "2", "--log-dir", self.path(f"{backend}{shards}"),
                       "--", EXAMPLE]
            environment = {**os.environ, "WEFT_TRANSPORT_BACKEND": backend, "WEFT_DEADLINE_MS": "30000"}
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, env=environment)
            self.assertEqual(done.returncode, 0, done.stdout)
            self.assertIn("on every worker", done.stdout)

    def test_without_shards(self):
        for backend in ("auto", "tcp", "shm"):
            self.check(0, backend)

    def test_with_shards(self):
        for backend in ("auto", "tcp", "shm"):
            self.check(2, backend)

    def test_a_coordinator_by_name(self):
        """localhost resolves to ::1; a wildcard listens on it."""
        ports = self.path("ports")
        secret = self.path("secret")
        with open(os.open(secret, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            file.write("a secret of this test\n")
        group = self.group()
        environment = {"WEFT_JOB": "demo", "WEFT_RANK": "0", "WEFT_SECRET_FILE": secret, "WEFT_DEADLINE_MS": "30000"}
        group.start("shard0", [*self.inside, harness.PROGRAMS.weftd, "--job", "demo", "--index", "0", "--workers", "1", "--shards", "1",
                               "--listen", "::", "--port", "4711", "--secret-file", secret, "--port-file", ports])
        group.start("worker0", [*self.inside, EXAMPLE], {**environment, "WEFT_COORDINATOR": "localhost:4711"})
        ended = harness.ends(group.processes, 60)
        codes = [process.returncode for _, process in group.processes]
        self.assertEqual(codes, [0, 0], (ended, self.log(group, "shard0"), self.log(group, "worker0")))


if __name__ == "__main__":
    harness.main()
