"""torchft_replica.py PORT NAME - one replica of test_torchft.py: a stand-in of torchft's manager.

The test writes each quorum into the store at PORT: its members in the order of their ranks, and which of them dies. A
replica configures its process group as torchft's manager does, steps, and reports. A replica that is no member ends.
"""

import json
import os
import signal
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import AllgatherOptions

import weft.torch.torchft

PORT, NAME = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
store = dist.TCPStore("127.0.0.1", PORT, is_master=False, timeout=timedelta(seconds=90))


def all_reduce(group, value):
    tensor = torch.full((1000,), float(value))
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.SUM
    work = group.allreduce([tensor], options)
    work.get_future().wait()
    work.wait()
    return tensor


def step(group, members, rank):
    """One step of a good quorum: the collectives that torchft's contract has."""
    ranks = len(members)
    assert (group.size(), group.rank(), group.errored()) == (ranks, rank, None)
    assert all_reduce(group, rank + 1).eq(sum(range(ranks + 1))).all()
    tensor = torch.full((3,), float(rank))
    group.broadcast_one(tensor, ranks - 1).wait()
    assert tensor.eq(ranks - 1).all()
    outputs = [[torch.empty(2) for _ in members]]
    group.allgather(outputs, [torch.full((2,), float(rank))], AllgatherOptions()).wait()
    assert [piece[0].item() for piece in outputs[0]] == list(range(ranks))
    group.barrier().wait()


def fail(group, lost):
    """A step in which a member is killed: an error that errored() keeps, at the start or at the end of an operation."""
    try:
        all_reduce(group, 1)
    except RuntimeError as error:
        text = str(error)
        assert group.errored() is not None and f"rank {lost}" in text + str(group.errored()), text
        return
    raise AssertionError("the operation on a killed rank has ended well")


def main():
    group = weft.torch.torchft.ProcessGroup(timedelta(seconds=60))
    try:
        all_reduce(group, 1)
    except weft.WrongState as error:
        assert "configure" in str(error)
    number = int(sys.argv[3])
    while True:
        quorum = json.loads(store.get(f"quorum/{number}"))
        members, dies = quorum["members"], quorum["dies"]
        if NAME not in members:
            break
        rank = members.index(NAME)
        address = f"127.0.0.1:{PORT}/torchft/{number}/0"
        group.configure(address, NAME, rank, len(members), number, 0, 1, list(range(len(members))))
        step(group, members, rank)
        if dies == NAME:
            os.kill(os.getpid(), signal.SIGKILL)
        if dies:
            fail(group, members.index(dies))
        store.set(f"done/{number}/{NAME}", "")
        number += 1
    group.abort()
    try:
        group.barrier()
    except weft.WrongState as error:
        assert "aborted" in str(error) and group.errored() is error
    group.shutdown()
    print("ended", NAME)


main()
