"""test_fleet.py - weft bench fleet between hosts that are network namespaces: the matrix, the slow link and the slow host by
name; a host that cannot be reached."""

import json
import os
import subprocess
import unittest

import harness
import netns

SHELL = """#!/bin/sh
# The remote shell of the test: runs the line in the namespace of the host.
exec ip netns exec "$(sed -n "s/^$1 //p" {hosts})" unshare --uts sh -c 'hostname "$0"; exec sh -c "$1"' "$1" "$2"
"""

SLOW = "15"  # percent of the median: beside other tests a link has been at a third of it


class Fleet(harness.JobTest):
    def fleet(self, network, *words, hosts=None, **more):
        names = self.path("hosts")
        with open(names, "w", encoding="utf-8") as file:
            file.writelines(f"{network.address(node)} {network.namespace(node)}\n" for node in network.nodes)
        shell = self.path("shell")
        with open(shell, "w", encoding="utf-8") as file:
            file.write(SHELL.format(hosts=names))
        os.chmod(shell, 0o755)
        hosts = hosts or [network.address(node) for node in network.nodes]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("WEFT_")}
        return subprocess.run([harness.PROGRAMS.weft, "bench", "fleet", "--rsh", shell, "--transport", "tcp", "-b", "16K", "--ms", "60",
                               "--serial", *words, *hosts], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=200,
                              env=environment, **more)

    def network(self, nodes, rate):
        if reason := netns.allowed():
            self.skipTest(reason)
        network = netns.Network(nodes, rate)
        self.groups.append(network)
        return network.__enter__()

    def test_the_slow_host_is_named(self):
        network = self.network(["a", "b", "c", "d"], "800mbit")
        network.limit("c", "16mbit")
        slow = network.address("c")
        plot = self.path("heat.svg")
        done = self.fleet(network, "--plot", plot, "--slow", SLOW)
        self.assertEqual(done.returncode, 3, done.stdout + done.stderr)
        verdict = [line for line in done.stdout.splitlines() if line.startswith("slow")]
        self.assertEqual(len(verdict), 1, done.stdout)
        self.assertRegex(verdict[0], rf"^slow host: {slow}: every link from and to it is slow, 0\.0\d+ GB/s on average, \d+ % of the median 0\.\d+ GB/s; ")
        rows = [line.split() for line in done.stdout.splitlines() if line.startswith("  10.77.0.")]
        self.assertEqual(len(rows), 8, done.stdout)  # of two matrices
        for i, row in enumerate(rows[:4]):
            self.assertEqual(row[i + 1], "-")
        with open(plot, encoding="utf-8") as file:
            drawn = file.read()
        self.assertIn(slow, drawn)
        self.assertEqual(drawn.count("<rect "), 1 + 12)

    def test_the_slow_link_is_named(self):
        """One direction between two hosts, as rows."""
        network = self.network(["a", "b", "c"], "800mbit")
        # A link of their own between a and b, and a limit at a's end of it.
        first, second = (network.command(node, ["ip"]) for node in ("a", "b"))
        netns.run(*first, "link", "add", "direct0", "type", "veth", "peer", "name", "direct0", "netns", network.namespace("b"))
        for end, node, peer in ((first, "a", "b"), (second, "b", "a")):
            netns.run(*end, "link", "set", "direct0", "up")
            netns.run(*end, "route", "add", network.address(peer) + "/32", "dev", "direct0", "src", network.address(node))
        netns.run(*network.command("a", ["tc", "qdisc", "add", "dev", "direct0", "root", "tbf", "rate", "8mbit", "burst", "64kb", "latency", "50ms"]))
        done = self.fleet(network, "--json", "--slow", SLOW)
        self.assertEqual(done.returncode, 3, done.stdout + done.stderr)
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual(len(rows), 6)
        self.assertEqual([(row["from"], row["to"]) for row in rows if row["slow"]], [(network.address("a"), network.address("b"))])
        self.assertTrue(all(row["transport"].startswith("tcp") for row in rows), rows)
        self.assertIn(f"slow link: {network.address('a')} -> {network.address('b')}: 0.00", done.stderr)

    def test_a_host_that_cannot_be_reached(self):
        network = self.network(["a", "b"], None)
        done = self.fleet(network, hosts=[network.address("a"), "10.77.0.9"])
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertRegex(done.stderr, r"host 10\.77\.0\.9: \S+shell ended with status")
        self.assertNotIn("slow", done.stdout)

    def test_a_host_that_hangs(self):
        """A remote shell that does not end, nor on SIGTERM."""
        shell = self.path("silent")
        with open(shell, "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\ntrap '' TERM\nwhile :; do sleep 1; done\n")
        os.chmod(shell, 0o755)
        done = subprocess.run([harness.PROGRAMS.weft, "bench", "fleet", "--rsh", shell, "--deadline", "1", "hosta", "hostb"], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=100)
        self.assertEqual(done.returncode, 1)
        self.assertIn("not finished after 1 s (--deadline); these hosts still run: hosta hostb", done.stderr)

    def test_ranks_of_one_host(self):
        done = subprocess.run([harness.PROGRAMS.weft, "bench", "fleet", "-n", "3", "--ms", "2", "--json"], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=100)
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual([(row["from"][-2:], row["to"][-2:]) for row in rows],
                         [(f"#{a}", f"#{b}") for a in range(3) for b in range(3) if a != b])
        self.assertTrue(all(row["avg_GBps"] > 0 and row["latency_us"] > 0 and not row["slow"] for row in rows))


if __name__ == "__main__":
    harness.main()
