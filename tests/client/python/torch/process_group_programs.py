"""Ranks of test_process_group.py: a process group as PyTorch before 2.14 gets it; nothing here is newer than 2.0."""

import copy

import models
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import weft.torch
import weft.torch._backend as backend

backend._has_backends_in_python = lambda: False
# PyTorch 2.15 records only groups that have backends; releases that take this path have no such recorder.
dist.distributed_c10d._maybe_attach_flight_recorder = lambda *_, **__: None
weft.torch.init_process_group()
RANK, RANKS = dist.get_rank(), dist.get_world_size()
TOTAL = RANKS * (RANKS + 1) / 2


def mine(count=3):
    return torch.full((count,), float(RANK + 1))


def everyone(count=3):
    return torch.arange(1.0, RANKS + 1).repeat_interleave(count)


def functions(_):
    """Each function of torch.distributed against a formula."""
    assert isinstance(dist.group.WORLD, backend.WeftProcessGroup)
    tensor = mine()
    assert dist.all_reduce(tensor, async_op=True).wait() and tensor.eq(TOTAL).all()
    tensor = mine()
    dist.reduce(tensor, 1)
    assert tensor.eq(TOTAL if RANK == 1 else RANK + 1).all()
    dist.broadcast(tensor, 1)
    assert tensor.eq(TOTAL).all()
    pieces = [torch.empty(3) for _ in range(RANKS)]
    dist.all_gather(pieces, mine())
    assert torch.equal(torch.cat(pieces), everyone())
    whole = torch.empty(3 * RANKS)
    dist.all_gather_into_tensor(whole, mine())
    assert torch.equal(whole, everyone())
    dist.gather(mine(), pieces if RANK == 0 else None)
    piece = torch.empty(3)
    dist.scatter(piece, list(everyone().chunk(RANKS)) if RANK == 0 else None)
    assert torch.equal(piece, mine())
    dist.reduce_scatter(piece, list(everyone().chunk(RANKS)))
    assert torch.equal(piece, mine() * RANKS)
    dist.reduce_scatter_tensor(piece, everyone())
    assert torch.equal(piece, mine() * RANKS)
    dist.all_to_all_single(whole, mine(3 * RANKS))
    assert torch.equal(whole, everyone())
    if RANK == 0:
        dist.send(mine(), 1)
    elif RANK == 1:
        dist.recv(piece, 0)
        assert piece.eq(1).all()
    objects = [None] * RANKS
    dist.all_gather_object(objects, {"rank": RANK})
    assert objects == [{"rank": rank} for rank in range(RANKS)]
    dist.barrier()


def groups(_):
    """Groups of some ranks, and of one."""
    for ranks in ([0, 1], [RANKS - 1]):
        group = dist.new_group(ranks)
        if RANK in ranks:
            tensor = mine()
            dist.all_reduce(tensor, group=group)
            assert tensor.eq(sum(rank + 1 for rank in ranks)).all()


def ddp(_):
    """DDP trains as one rank with the whole batch, with and without the hook."""
    start = models.mlp()
    for hook in (False, True):
        model, one = DistributedDataParallel(copy.deepcopy(start)), copy.deepcopy(start)
        if hook:
            weft.torch.register_ddp_hook(model)
        models.train(model, torch.optim.SGD(model.parameters(), lr=0.1), 3, RANK, RANKS)
        models.train(one, torch.optim.SGD(one.parameters(), lr=0.1), 3)
        for trained, expected in zip(model.module.parameters(), one.parameters()):
            torch.testing.assert_close(trained, expected)


def ends(_):
    dist.destroy_process_group()
    assert not dist.is_initialized()
