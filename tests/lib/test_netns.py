#!/usr/bin/python3
"""test_netns.py - shaped networks of namespaces (tools/dev/netns.py): hosts reach each other, links have their
rate, no namespace is left. Exit status 77 with the reason if namespaces are not allowed."""

import json
import os
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools", "dev"))
import netns  # noqa: E402

LISTEN = """
import socket
door = socket.create_server(("", 4711))
print("ready", flush=True)
peer, _ = door.accept()
total = 0
while data := peer.recv(65536):
    total += len(data)
print(total)
"""
SEND = """
import socket, sys
peer = socket.create_connection((sys.argv[1], 4711), timeout=60)
peer.sendall(bytes(200000))
"""
MEET = """
import socket, sys
door = socket.create_server((sys.argv[1], 0))
caller = socket.create_connection(door.getsockname(), timeout=60)
taken, _ = door.accept()
for end in caller, taken:
    print(end.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\\0").decode())
"""


def namespaces():
    return subprocess.run(["ip", "netns", "list"], stdout=subprocess.PIPE, text=True, check=True).stdout


class NetworkTest(unittest.TestCase):
    def test_hosts_reach_each_other(self):
        with netns.Network(["a", "b", "c"], "100mbit") as network:
            python = [sys.executable, "-c"]
            listener = subprocess.Popen(network.command("c", python + [LISTEN]), stdout=subprocess.PIPE, text=True)
            try:
                self.assertEqual(listener.stdout.readline(), "ready\n")
                subprocess.run(network.command("a", python + [SEND, network.address("c")]), check=True, timeout=60)
                self.assertEqual(listener.communicate(timeout=60)[0], "200000\n")
            finally:
                listener.kill()

    def test_both_ends_of_each_link_have_the_rate(self):
        with netns.Network(["a", "b"], "100mbit") as network:
            for node, device in (("a", netns.DEVICE), ("b", netns.DEVICE), ("bridge", "port0"), ("bridge", "port1")):
                shown = subprocess.run(network.command(node, ["tc", "-j", "qdisc", "show", "dev", device]),
                                       stdout=subprocess.PIPE, text=True, check=True).stdout
                shaper = json.loads(shown)[0]
                self.assertEqual(shaper["kind"], "tbf")
                self.assertEqual(shaper["options"]["rate"], 100_000_000 // 8)

    def test_both_ends_have_the_congestion_control_that_is_named(self):
        def of_both(words):
            return subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout.split()

        python = [sys.executable, "-c", MEET]
        with netns.private_loopback() as (inside, name):
            self.assertEqual(of_both([*inside, *python, "127.0.0.1"]), [name, name])
        with netns.Network(["a"], None) as network:
            self.assertEqual(of_both(network.command("a", [*python, network.address("a")])), [name, name])

    def test_what_the_routes_refuse_leaves_the_setting_in_force(self):
        with netns.private_loopback() as (inside, _):
            self.assertFalse(netns._by_routes(inside, "no-such"))
            self.assertTrue(netns._by_routes(inside, "reno"))
            words = [*inside, sys.executable, "-c", MEET, "127.0.0.1"]
            self.assertEqual(subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout.split(), ["reno", "reno"])

    def test_nothing_stays_behind(self):
        with self.assertRaises(KeyError):
            with netns.Network(["a", "b"], "1gbit") as network:
                self.assertIn(network.namespace("a"), namespaces())
                raise KeyError("a failure in the middle of a test")
        self.assertNotIn(network.prefix, namespaces())

    def test_a_bad_rate_is_a_sentence_and_leaves_nothing(self):
        network = netns.Network(["a"], "fast")
        with self.assertRaisesRegex(OSError, "rate fast"):
            with network:
                pass
        self.assertNotIn(network.prefix, namespaces())


if __name__ == "__main__":
    reason = netns.allowed()
    if reason:
        print("skipped:", reason)
        sys.exit(77)
    unittest.main()
