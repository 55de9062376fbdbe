"""Ranks that are forks of the test process, so that they have its modules: torch takes seconds to load.

    weft run  ->  rank.py, one per rank  ->  server (a fork of the test process)  ->  guard  ->  rank

The server forks one guard per rank. The guard forks the rank, sends its wait status to rank.py, and kills the
rank if rank.py ends first. Nothing of torch has run in the server, so no thread is missing in a rank. The end of
the interpreter itself does not run in a fork: some tests of the examples start interpreters of their own.
"""

import atexit
import ctypes
import faulthandler
import gc
import importlib
import json
import logging
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import threading
import traceback
import types
import weakref

LATER = ["torch._dynamo"]  # imported by the first torch optimizer of a process
REQUEST_BYTES = 1 << 20
PR_SET_PDEATHSIG = 1


class Server:
    """A process that starts ranks until close(), or until the test process ends; `path` is its socket."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="weft-forks-")
        self.path = os.path.join(self.folder, "socket")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(self.path)
        listener.listen(64)
        for name in LATER if "torch" in sys.modules else []:
            importlib.import_module(name)
        gc.freeze()  # collections in ranks leave the pages of these objects shared
        parent, self.process = os.getpid(), os.fork()
        if self.process == 0:
            _run_to_exit(lambda: _serve(listener, parent))
        listener.close()

    def close(self):
        os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)
        shutil.rmtree(self.folder)


def _run_to_exit(function):
    """Call the function and end this process with its result, without exit handlers of the test process."""
    status = 1
    try:
        status = function()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status or 0)


def _serve(listener, parent):
    os.setsid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nothing waits for guards
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _run_to_exit(lambda: _guard(connection))
        connection.close()


def _guard(connection):
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    text, descriptors, _, _ = socket.recv_fds(connection, REQUEST_BYTES, 3)
    request = json.loads(text)
    rank = os.fork()
    if rank == 0:
        connection.close()
        _run_to_exit(lambda: _rank(request, descriptors))
    for descriptor in descriptors:
        os.close(descriptor)
    ended = os.pidfd_open(rank)
    ready, _, _ = select.select([ended, connection], [], [])
    if ended not in ready:
        os.kill(rank, signal.SIGKILL)
    _, status = os.waitpid(rank, 0)
    if ended in ready:
        connection.send(str(status).encode())


def _forget_the_test_process():
    """Remove what pytest has installed in the interpreter."""
    atexit._clear()
    weakref.finalize._registry.clear()
    weakref.finalize._registered_with_atexit = False
    logging.getLogger().handlers.clear()
    threading.excepthook, sys.unraisablehook = threading.__excepthook__, sys.__unraisablehook__


def _rank(request, descriptors):
    """Do what `python ARGUMENTS` does. Returns the exit status."""
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    _forget_the_test_process()
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    os.sched_setaffinity(0, request["processors"])
    sys.stdin = open(0, closefd=False)
    sys.stdout = sys.__stdout__ = open(1, "w", buffering=1, closefd=False)
    sys.stderr = sys.__stderr__ = open(2, "w", buffering=1, closefd=False, errors="backslashreplace")
    faulthandler.enable(sys.stderr)
    sys.path[:0] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    status = _run_program(request["arguments"])
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    return status


def _run_program(arguments):
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    if arguments[0] == "-c":
        sys.argv, name, code = ["-c", *arguments[2:]], "<string>", arguments[1]
        sys.path.insert(0, "")
    else:
        sys.argv, name = arguments, arguments[0]
        sys.path.insert(0, os.path.dirname(name))
        main.__file__ = name
        with open(name, encoding="utf-8") as file:
            code = file.read()
    try:
        exec(compile(code, name, "exec"), main.__dict__)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0
