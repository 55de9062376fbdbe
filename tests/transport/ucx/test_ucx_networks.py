#!/usr/bin/python3
"""test_ucx_networks.py PROGRAM - UCX over tcp between two network namespaces joined by a link with a rate; runs
test_ucx_pair in them. Skipped, with a line, where namespaces are not permitted."""

import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "tools", "dev"))
import netns  # noqa: E402


def main():
    reason = netns.allowed()
    if reason:
        print(f"skipped: no network namespaces here ({reason})")
        return 77
    with netns.Network(["left", "right"], "4gbit") as network:
        words = [sys.argv[1], network.namespace("left"), network.namespace("right"), netns.DEVICE]
        return subprocess.run(words, timeout=100, check=False).returncode


sys.exit(main())
