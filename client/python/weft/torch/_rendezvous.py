"""Rendezvous of torch.distributed through weft: the ranks of the session find their store without
MASTER_ADDR.

Rank 0 opens a TCPStore on a free port and broadcasts its address. `init_method="weft://"` uses it too.
"""

import os
import socket

import torch.distributed as dist

from .. import _session
from .._errors import InvalidArgument, WrongState

_ADDRESS_BYTES = 512


def get_session(**options):
    """Return the process's session; join the job by weft.init(**options) if there is none."""
    try:
        return _session.session()
    except WrongState:
        return _session.init(**options)


def init_process_group(backend="weft", **options):
    """Make torch.distributed's default group of the session's ranks: `backend` "weft", "gloo",
    "cpu:weft,cuda:nccl".

    It joins the job if the process has no session. Ranks are those of the session. options: the other
    arguments of torch.distributed.init_process_group, such as timeout. Collective; blocks.
    """
    dist.init_process_group(backend, init_method="weft://", **options)


def _coordinator_side():
    """The address of this host on the way to the coordinator, which all ranks can reach."""
    host, _, port = os.environ.get("WEFT_COORDINATOR", "").rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdecimal():
        return socket.gethostname()
    return own_host(host, int(port))


def own_host(host, port):
    """The address of this host on the way to another, which all that reach the other can reach."""
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)  # sends nothing
        return probe.getsockname()[0]


def make_store(session, timeout):
    """Return a TCPStore that all ranks share. Collective; blocks, at most `timeout` (timedelta)."""
    address = bytearray(_ADDRESS_BYTES)
    store = None
    if session.rank == 0:
        host = _coordinator_side()
        store = dist.TCPStore(host, 0, session.ranks, True, timeout, wait_for_workers=False)
        text = f"{host}\n{store.port}".encode()
        address[: len(text)] = text
    session.broadcast(address).wait()
    if store is None:
        host, port = address.rstrip(b"\0").decode().split("\n")
        store = dist.TCPStore(host, int(port), session.ranks, False, timeout)
    return store


def _rendezvous(url, timeout=dist.default_pg_timeout, **_):
    session = get_session()
    query = dict(item.split("=", 1) for item in url.partition("?")[2].split("&") if "=" in item)
    for name, value in (("rank", session.rank), ("world_size", session.ranks)):
        if int(query.get(name, value)) not in (value, -1):
            raise InvalidArgument(
                f"init_process_group got {name} {query[name]}; the weft session has {name} {value}"
            )
    yield make_store(session, timeout), session.rank, session.ranks


def register():
    """Register the scheme weft:// with torch.distributed."""
    dist.register_rendezvous_handler("weft", _rendezvous)
