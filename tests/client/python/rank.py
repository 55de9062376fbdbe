"""rank.py ARGUMENTS - runs `python ARGUMENTS` as a fork of the test process (forks.py), and ends as that ends.

The launcher starts this program as a rank: it has no imports that take time. The fork gets its descriptors,
variables, folder and processors.
"""

import json
import os
import socket
import sys

connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
connection.connect(os.environ["WEFT_TEST_FORKS"])
request = {"arguments": sys.argv[1:], "environment": dict(os.environ), "folder": os.getcwd(),
           "processors": sorted(os.sched_getaffinity(0))}  # fmt: skip
socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
answer = connection.recv(64)
if not answer:
    sys.exit("rank.py: the test process ended before the rank")
status = int(answer)
if os.WIFSIGNALED(status):
    os.kill(os.getpid(), os.WTERMSIG(status))
sys.exit(os.WEXITSTATUS(status))
