"""A process group of torchft's contract: configured anew for each quorum, with errors that the manager can ask for.

    from torchft import Manager
    manager = Manager(pg=weft.torch.torchft.ProcessGroup(timeout), ...)

Each configure() makes a session of its own: rank 0 of the quorum coordinates it, and the store carries its address.
torchft need not be installed.
"""

import contextlib
import os
import socket
import threading
import zlib
from datetime import timedelta

import torch.distributed as dist

from .. import _session
from .._errors import AlreadyExists, WeftError, WrongState
from ._backend import Collectives
from ._rendezvous import own_host

try:
    from torchft.process_group import ProcessGroup as _Base  # adds register() for functions of torch.distributed
except ImportError:
    _Base = dist.ProcessGroup

_TRIES = 3  # ports that rank 0 tries: another process may take a free one before it listens
_environment = threading.Lock()


class _Backend(Collectives):
    """Keeps the first error of an operation."""

    error = None

    def _work(self, *arguments):
        work = super()._work(*arguments)
        work.on_error = self.failed
        return work

    def failed(self, error):
        self.error = self.error or error


def _free_port(host):
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]


def _join(coordinator, job, rank, ranks, seconds):
    """Open a session of `ranks` ranks whose rank 0 coordinates, whatever launcher this process has."""
    with _environment:
        before = os.environ.get("WEFT_RANKS")
        os.environ["WEFT_RANKS"] = str(ranks)
        try:
            return _session.open_session(coordinator, job=job, rank=rank, deadline=seconds)
        finally:
            if before is None:
                del os.environ["WEFT_RANKS"]
            else:
                os.environ["WEFT_RANKS"] = before


def _meet(store, address, job, rank, ranks, seconds):
    """Open the session of a quorum; its coordinator's address is in the store. Blocks."""
    host, port = address
    for number in range(_TRIES):
        key = f"weft/{number}"
        if rank == 0:
            own = own_host(host, port)
            store.set(key, f"[{own}]:{_free_port(own)}" if ":" in own else f"{own}:{_free_port(own)}")
        store.wait([key], timedelta(seconds=seconds))
        try:
            session = _join(store.get(key).decode(), f"{job}-{number}", rank, ranks, seconds)
        except AlreadyExists:
            if rank == 0 and number + 1 < _TRIES:
                continue
            raise
        return session
    raise AssertionError("unreachable")


class ProcessGroup(_Base):
    """The group of one quorum after another. Tensors are on the CPU.

    timeout: of every operation, and of configure(). An operation on a lost or stopped rank raises from its start or
    its wait, and errored() then returns the exception until the next configure(). A group without a quorum raises
    WrongState.
    """

    def __init__(self, timeout=timedelta(seconds=60)):
        super().__init__(0, 1)
        self._timeout, self._backend, self._session, self._aborted = timeout, None, None, None

    def configure(self, store_addr, *arguments, **options):
        """Join the quorum: configure(store_addr, [replica_id,] rank, world_size, ...). Blocks at most the timeout.

        store_addr: "host:port/prefix", with a prefix that no earlier quorum had.
        """
        numbers = [value for value in arguments if isinstance(value, int)]
        rank = options["rank"] if "rank" in options else numbers[0]
        ranks = options["world_size"] if "world_size" in options else numbers["rank" not in options]
        self._leave("the process group is configured anew")
        place, _, prefix = store_addr.partition("/")
        host, port = place.rsplit(":", 1)
        host = host.strip("[]")
        store = dist.PrefixStore(prefix, dist.TCPStore(host, int(port), is_master=False, timeout=self._timeout))
        job = f"torchft-{zlib.crc32(store_addr.encode()):08x}"
        session = _meet(store, (host, int(port)), job, rank, ranks, self._timeout.total_seconds())
        self._session, self._backend = session, _Backend(session, None, rank, ranks, self._timeout)
        self._aborted = None

    def _leave(self, text):
        """End the session. Operations under way end with an error; a thread finalizes, which may wait for others."""
        session, self._session, self._backend = self._session, None, None
        if session is None:
            return
        with contextlib.suppress(WeftError):
            session.abort(text)
        threading.Thread(target=_finalize, args=(session,), name="weft-finalize", daemon=True).start()

    def abort(self):
        """End all operations with an error. The group then needs configure()."""
        self._leave("the process group is aborted")
        self._aborted = WrongState("the process group was aborted; call configure() for a new quorum")

    def shutdown(self):
        """Leave the quorum."""
        self._leave("the process group is shut down")

    def errored(self):
        """The first error of an operation since configure(), or None. Does not block."""
        backend = self._backend
        if backend is None:
            return self._aborted
        for work in list(backend._works):
            work.is_completed()  # an operation that has ended badly and that nothing waits for
        return backend.error

    def set_timeout(self, timeout):
        self._timeout = timeout
        if self._backend is not None:
            self._backend.set_timeout(timeout)

    def size(self):
        return 1 if self._backend is None else self._backend._size

    def rank(self):
        return 0 if self._backend is None else self._backend._rank

    def getBackendName(self):
        return "torchft-weft"

    def broadcast_one(self, tensor, root):
        options = dist.BroadcastOptions()
        options.rootRank = root
        return self.broadcast([tensor], options)

    def barrier(self, options=None):
        return self._start("barrier", options)

    def allreduce(self, tensors, options):
        if not hasattr(options, "reduceOp"):
            operation, options = options, dist.AllreduceOptions()
            options.reduceOp = operation
        return self._start("allreduce", tensors, options)

    def _start(self, name, *arguments):
        backend = self._backend
        if backend is None:
            raise self._aborted or WrongState("the process group has no quorum; call configure()")
        try:
            return getattr(backend, name)(*arguments)
        except WeftError as error:
            backend.failed(error)
            raise


def _finalize(session):
    with contextlib.suppress(WeftError):
        session.finalize()


def _forward(name):
    def call(self, *arguments):
        return self._start(name, *arguments)

    call.__name__ = name
    return call


for _name in ("allgather", "allgather_into_tensor_coalesced", "allreduce_coalesced", "alltoall_base", "broadcast", "recv",
              "reduce_scatter", "reduce_scatter_tensor_coalesced", "send"):  # fmt: skip
    setattr(ProcessGroup, _name, _forward(_name))
