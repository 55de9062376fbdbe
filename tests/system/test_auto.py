"""test_auto.py - one job over several transports at once. Two network namespaces stand for two hosts with two processes
each: shared memory inside a host, sockets between hosts. The weights equal those over sockets alone."""

import json
import os
import signal
import subprocess

import harness
import jobs
import netns


class TwoHosts:
    """Processes of a job on two nodes of a network: even numbers on one, odd ones on the other."""

    def __init__(self, network):
        self.network = network

    @staticmethod
    def host(node):
        return f"host{int(node[-1]) % 2}"

    def address(self, node):
        return self.network.address(self.host(node))

    def command(self, node, words):
        return self.network.command(self.host(node), words)


class Auto(harness.JobTest):
    def two_hosts(self):
        reason = netns.allowed()
        if reason:
            self.skipTest(f"no network namespaces: {reason}")
        network = netns.Network(["host0", "host1"], "10gbit")
        network.__enter__()
        self.addCleanup(network.__exit__)
        return TwoHosts(network)

    def hashes(self, network, backend):
        """Hashes of the weights of every rank after every step."""
        group, path = self.group(backend), self.path(backend + "-hashes")
        trainer = [harness.PROGRAMS.trainer, "--mode", "server", "--steps", "6", "--hidden", "64", "--eval-every", "1000", "--hash-steps", path]
        jobs.start_by_hand(harness.PROGRAMS, group, 2, 4, trainer, network, {"WEFT_TRANSPORT_BACKEND": backend})
        group.wait(100)
        ranks = []
        for rank in range(4):
            with open(f"{path}.{rank}", encoding="ascii") as file:
                ranks.append(file.read())
        self.assertEqual(len(set(ranks)), 1, "the ranks differ")
        self.assertEqual(len(ranks[0].splitlines()), 6)
        return ranks[0]

    def test_two_hosts(self):
        network = self.two_hosts()
        self.assertEqual(self.hashes(network, "auto"), self.hashes(network, "ucx"))

    def test_what_is_used(self):
        """Rank 0 has a neighbour on its host and two elsewhere."""
        group = self.group("bench")
        words = [harness.PROGRAMS.weft, "bench", "all_reduce", "-b", "4K", "-e", "64K", "-f", "16", "--iters", "5"]
        jobs.start_by_hand(harness.PROGRAMS, group, 1, 4, words, self.two_hosts())
        group.wait(60)
        header = self.log(group, "worker0").splitlines()[0]
        self.assertRegex(header, "transport (shm .*ucx tcp/weft0|ucx tcp/weft0.*shm )")

    def test_p2p_with_the_job_s_secret(self):
        """weft bench p2p between hosts uses the secret of its job; an endpoint with another secret is refused."""
        network = self.two_hosts()
        words = [harness.PROGRAMS.weft, "bench", "p2p", "--devices", netns.DEVICE, "-b", "64", "-e", "64K", "-f", "1024", "--row-ms", "20",
                 "--wait", "auto", "--json"]
        for transport in ("ucx:tcp", "auto"):
            group = self.group("p2p-" + transport)
            jobs.start_by_hand(harness.PROGRAMS, group, 1, 2, words + ["--transport", transport], network)
            group.wait(60)
            rows = [json.loads(line) for line in self.log(group, "worker0").splitlines()]
            self.assertEqual([row["wrong"] for row in rows], [0] * 4)
        other = self.path("other")
        with open(os.open(other, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="ascii") as file:
            file.write("another secret altogether")
        group = self.group("p2p-other")
        jobs.start_by_hand(harness.PROGRAMS, group, 1, 2, lambda rank: words + (["--secret-file", other] if rank else []), network)
        with self.assertRaises(jobs.JobFailed):
            group.wait(60)
        self.assertIn("cannot connect to rank", self.log(group, "worker0") + self.log(group, "worker1"))

    def test_other_backend(self):
        """Processes with different backends do not connect, and the error names the cause."""
        group = self.group("other")
        trainer = [harness.PROGRAMS.trainer, "--steps", "5"]
        jobs.start_by_hand(harness.PROGRAMS, group, 1, 2, lambda rank: ["env", "WEFT_TRANSPORT_BACKEND=" + ("auto", "ucx")[rank]] + trainer)
        with self.assertRaises(jobs.JobFailed):
            group.wait(60)
        output = self.log(group, "worker0") + self.log(group, "worker1") + self.log(group, "shard0")
        self.assertIn("have all processes the same transport.backend?", output)

    def test_killed_on_the_other_host(self):
        """Survivors on both hosts detect a death and name the rank."""
        group = self.group("death")
        csv = self.path("csv")
        trainer = [harness.PROGRAMS.trainer, "--mode", "all_reduce", "--steps", "100000", "--hidden", "64", "--eval-every", "10", "--csv", csv]
        jobs.start_by_hand(harness.PROGRAMS, group, 1, 4, trainer, self.two_hosts())
        self.wait_for_steps(group, csv)
        victim = next(process for name, process in group.processes if name == "worker3")
        os.killpg(victim.pid, signal.SIGKILL)
        for name, process in group.processes:
            if process is victim:
                continue
            try:
                self.assertNotEqual(process.wait(30), 0, name)
            except subprocess.TimeoutExpired:
                self.fail(f"{name} has not ended: {self.log(group, name)}")
            self.assertIn("rank 3", self.log(group, name))


if __name__ == "__main__":
    harness.main()
