"""Ranks of test_trainers.py: trainers of PyTorch on the backend "weft"."""

import copy

import models
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.algorithms.join import Join
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel as DDP

import weft.torch
from weft.torch._backend import WeftBackend

weft.torch.init_process_group()
RANK, RANKS = dist.get_rank(), dist.get_world_size()


def ddp_equals_gloo(_):
    """DDP without a hook, BatchNorm's buffers included, has the bits of gloo's with two ranks."""
    results = []
    for group in (dist.new_group(backend="gloo"), None):
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(20, 64), torch.nn.BatchNorm1d(64), torch.nn.ReLU(), torch.nn.Linear(64, 5)
        )
        model = DDP(model, process_group=group, bucket_cap_mb=0.002)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        models.train(model, optimizer, 10, RANK, RANKS)
        results.append(list(model.state_dict().values()))
    assert models.same_bits(*results)


def one_rank(steps, make_optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.01), clip=None):
    """The oracle: one process with the whole batch."""
    model = models.mlp()
    optimizer = make_optimizer(model.parameters())
    models.train(model, optimizer, steps, clip=clip)
    return model


def sharded(mesh=None):
    """FSDP2's model and optimiser."""
    model = models.mlp()
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def fsdp_equals_one_rank(_):
    """fully_shard with clipped gradients, also in weft's memory, equals one rank with the whole batch."""
    expected = one_rank(8, clip=0.5)
    allocations, allocate = [], WeftBackend.allocate_tensor
    for own_memory in (False, True):
        model, optimizer = sharded()
        if own_memory:
            WeftBackend.allocate_tensor = lambda *args, **options: (
                allocations.append(args) or allocate(*args, **options)
            )
            for module in model.modules():
                if isinstance(module, FSDPModule):
                    module.set_allocate_memory_from_process_group_for_comm(True)
        models.train(model, optimizer, 8, RANK, RANKS, clip=0.5)
        for parameter, want in zip(model.parameters(), expected.parameters()):
            torch.testing.assert_close(parameter.full_tensor(), want.data, atol=1e-5, rtol=1e-5)
    WeftBackend.allocate_tensor = allocate
    assert allocations


def checkpoint(_, path):
    """Distributed checkpoint: a new model continues from the files, in bits."""
    model, optimizer = sharded()
    models.train(model, optimizer, 3, RANK, RANKS)
    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=path)
    models.train(model, optimizer, 3, RANK, RANKS, first=3)
    again, second = sharded()
    weights, moments = get_state_dict(again, second)
    state = {"model": weights, "optimizer": moments}
    dcp.load(state, checkpoint_id=path)
    set_state_dict(again, second, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    models.train(again, second, 3, RANK, RANKS, first=3)
    assert all(
        torch.equal(a.to_local(), b.to_local()) for a, b in zip(model.parameters(), again.parameters())
    )


def zero_equals_one_rank(_):
    """ZeroRedundancyOptimizer on DDP equals one rank with the whole batch."""
    model = DDP(models.mlp())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01)
    models.train(model, optimizer, 8, RANK, RANKS)
    for parameter, want in zip(model.parameters(), one_rank(8).parameters()):
        torch.testing.assert_close(parameter, want, atol=1e-5, rtol=1e-5)
    optimizer.consolidate_state_dict(0)
    assert RANK or len(optimizer.state_dict()["state"]) == 6


def join_uneven_inputs(_):
    """Ranks with fewer batches join; all end with the same weights."""
    model = DDP(models.mlp())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Join([model]):
        models.train(model, optimizer, 3 + 2 * RANK, RANK, RANKS)
    for parameter in model.parameters():
        other = parameter.detach().clone()
        dist.broadcast(other, 0)
        assert torch.equal(parameter, other)


def mesh_of_one_dimension(_):
    """DeviceMesh and DTensor."""
    mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("dp",))
    whole = torch.arange(4.0 * RANKS)
    part = torch.distributed.tensor.distribute_tensor(whole, mesh, [torch.distributed.tensor.Shard(0)])
    assert torch.equal(part.to_local(), whole.chunk(RANKS)[RANK])
    assert torch.equal((part * 2).full_tensor(), whole * 2)
    assert part.sum().full_tensor() == whole.sum()


def groups(_):
    """Groups of some ranks, made by their members alone, overlapping and of one rank."""
    evens = dist.new_group([0, 2])
    tail = dist.new_group([1, 2, 3])
    alone = dist.new_group([RANK], use_local_synchronization=True)
    for group, members in ((evens, [0, 2]), (tail, [1, 2, 3]), (alone, [RANK])):
        if RANK not in members:
            continue
        tensor = torch.tensor([1.0, float(RANK)])
        dist.all_reduce(tensor, group=group)
        assert tensor.tolist() == [len(members), sum(members)]
        dist.broadcast(tensor, members[-1], group=group)
        last = torch.tensor([RANK])
        dist.broadcast(last, members[-1], group=group)
        assert last.item() == members[-1]
        pieces = [None] * len(members)
        dist.all_gather_object(pieces, RANK, group=group)
        assert pieces == members
    dist.barrier()
    if RANK in (0, 2):
        dist.destroy_process_group(evens)


def mesh_of_two_dimensions(_):
    """HSDP: shards inside a row of the mesh, replicas across rows; equals one rank with the whole batch."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    assert mesh["shard"].size() == 2
    expected = one_rank(6)
    model, optimizer = sharded(mesh)
    models.train(model, optimizer, 6, RANK, RANKS)
    for parameter, want in zip(model.parameters(), expected.parameters()):
        torch.testing.assert_close(parameter.full_tensor(), want.data, atol=1e-5, rtol=1e-5)


def tensor_parallel(_):
    """Data x tensor parallel on a named mesh: layers cut by columns and rows, shards along dp; equals one rank."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = models.mlp()
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    parallelize_module(model, mesh["tp"], plan)
    fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
    dp = mesh["dp"]
    models.train(model, optimizer, 6, dp.get_local_rank(), dp.size())
    for parameter, want in zip(model.parameters(), one_rank(6).parameters()):
        torch.testing.assert_close(parameter.full_tensor(), want.data, atol=1e-5, rtol=1e-5)
    assert model[0].weight.to_local().shape == (16, 20)  # a quarter of the rows


def sequence_parallel(_):
    """Activations cut along the sequence: all_gather and reduce_scatter around a layer, with gradients."""
    mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("tp",))
    torch.manual_seed(0)
    whole = torch.nn.Sequential(torch.nn.LayerNorm(8), torch.nn.Linear(8, 16), torch.nn.Linear(16, 8))
    cut = copy.deepcopy(whole)
    parallelize_module(cut, mesh, {
        "0": SequenceParallel(sequence_dim=0),
        "1": ColwiseParallel(input_layouts=torch.distributed.tensor.Shard(0)),
        "2": RowwiseParallel(output_layouts=torch.distributed.tensor.Shard(0), use_local_output=False),
    })  # fmt: skip
    inputs = torch.randn(4 * RANKS, 8, generator=torch.Generator().manual_seed(5))
    expected, got = whole(inputs), cut(inputs.chunk(RANKS)[RANK]).full_tensor()
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
    expected.square().sum().backward()
    got.square().sum().backward()
    torch.testing.assert_close(cut[1].weight.grad.full_tensor(), whole[1].weight.grad, atol=1e-4, rtol=1e-4)


def dies_in_backward(_):
    """Rank 1 is killed inside its backward pass: the exception of rank 0's backward names it."""
    model = DDP(models.mlp(), bucket_cap_mb=0.002)
    models.die_in_backward(model, RANK, RANKS, RuntimeError, "PeerLost", "rank 1")
