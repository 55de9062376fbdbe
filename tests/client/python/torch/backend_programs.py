"""Ranks of test_backend.py: each surface on the backend "weft", compared with gloo or with a formula."""

import gc

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional_collectives

import weft.torch

weft.torch.init_process_group()
RANK, RANKS = dist.get_rank(), dist.get_world_size()
DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.complex64,
    torch.bool,
]


def values(rank, dtype, count=7):
    """The tensor (count,) that `rank` contributes."""
    return (torch.arange(count) % 3 + rank).to(dtype)


def expected(op, dtype):
    """The reduction of all ranks' values by torch itself."""
    stack = torch.stack([values(rank, dtype) for rank in range(RANKS)])
    if dtype == torch.bool:
        return stack.any(0) if op in ("SUM", "MAX") else stack.all(0)
    if op in ("SUM", "AVG"):
        total = stack.sum(0).to(dtype)
        return total if op == "SUM" else total / RANKS
    return {"MIN": torch.amin, "MAX": torch.amax, "PRODUCT": torch.prod}[op](stack, 0).to(dtype)


def reductions(_):
    for dtype in DTYPES:
        for op in ("SUM", "MIN", "MAX", "PRODUCT"):
            if dtype.is_complex and op != "SUM":
                continue
            reduce_op = getattr(dist.ReduceOp, op)
            tensor = values(RANK, dtype)
            dist.all_reduce(tensor, reduce_op)
            assert torch.equal(tensor, expected(op, dtype)), (dtype, op, tensor)
            tensor = values(RANK, dtype)
            dist.reduce(tensor, RANKS - 1, reduce_op)
            assert torch.equal(tensor, expected(op, dtype) if RANK == RANKS - 1 else values(RANK, dtype)), (
                dtype,
                op,
            )
            output = torch.empty(7, dtype=dtype)
            dist.reduce_scatter(output, [values(RANK, dtype) for _ in range(RANKS)], reduce_op)
            assert torch.equal(output, expected(op, dtype)), (dtype, op)
    average = values(RANK, torch.float32)
    dist.all_reduce(average, dist.ReduceOp.AVG)
    torch.testing.assert_close(average, expected("AVG", torch.float32))
    bits = torch.tensor([1 << RANK, 7])
    dist.all_reduce(bits, dist.ReduceOp.BXOR)
    assert bits.tolist() == [(1 << RANKS) - 1, 7 * (RANKS % 2)]
    scaled = torch.ones(3)
    dist.all_reduce(scaled, dist._make_nccl_premul_sum(0.5))
    assert torch.equal(scaled, torch.full((3,), 0.5 * RANKS))


def movements(_):
    """Functions that move tensors, with dtypes that weft does not know and memory that is not contiguous."""
    for dtype in DTYPES:
        tensor = values(RANK, dtype)
        dist.broadcast(tensor, 1)
        assert torch.equal(tensor, values(1, dtype))
        outputs = [torch.empty(7, dtype=dtype) for _ in range(RANKS)]
        dist.all_gather(outputs, values(RANK, dtype))
        assert all(torch.equal(output, values(rank, dtype)) for rank, output in enumerate(outputs))
        whole = torch.empty(RANKS, 7, dtype=dtype)
        dist.all_gather_into_tensor(whole, values(RANK, dtype))
        assert torch.equal(whole, torch.stack([values(rank, dtype) for rank in range(RANKS)]))
        gathered = [torch.empty(7, dtype=dtype) for _ in range(RANKS)] if RANK == 1 else None
        dist.gather(values(RANK, dtype), gathered, 1)
        assert RANK != 1 or all(
            torch.equal(piece, values(rank, dtype)) for rank, piece in enumerate(gathered)
        )
        piece = torch.empty(7, dtype=dtype)
        dist.scatter(piece, [values(5 * rank, dtype) for rank in range(RANKS)] if RANK == 0 else None, 0)
        assert torch.equal(piece, values(5 * RANK, dtype))
    columns = torch.zeros(4, RANKS * 2)[:, ::2]
    columns[:, RANK] = 1
    dist.all_reduce(columns)
    assert columns.eq(1).all()
    rows = torch.full((2, 3), float(RANK)).t()
    dist.broadcast(rows, 2)
    assert rows.eq(2).all()


def exchanges(_):
    """all_to_all with equal and unequal pieces, reduce_scatter with unequal ones, send and recv."""
    source = torch.arange(RANKS * 2) + 100 * RANK
    output = torch.empty_like(source)
    dist.all_to_all_single(output, source)
    assert output.tolist() == [100 * rank + 2 * RANK + i for rank in range(RANKS) for i in range(2)]
    sizes = [rank + 1 for rank in range(RANKS)]
    source = torch.full((sum(sizes), 2), float(RANK))
    output = torch.empty(RANKS * (RANK + 1), 2)
    dist.all_to_all_single(output, source, [RANK + 1] * RANKS, sizes)
    assert output[:, 0].tolist() == [rank for rank in range(RANKS) for _ in range(RANK + 1)]
    outputs = [torch.empty(RANK + 1) for _ in range(RANKS)]
    dist.all_to_all(outputs, [torch.full((size,), float(RANK)) for size in sizes])
    assert [output[0].item() for output in outputs] == list(range(RANKS))
    for dtype in (torch.float32, torch.complex64, torch.int16):
        output = torch.empty(RANK + 1, dtype=dtype)
        dist.reduce_scatter(output, [torch.ones(size, dtype=dtype) for size in sizes])
        assert output.eq(RANKS).all()
    # Only rank 0 receives, elements that travel as bytes.
    output = torch.empty(2 * RANKS if RANK == 0 else 0, dtype=torch.int16)
    source = torch.full((2,), RANK, dtype=torch.int16) if RANK else torch.zeros(2, dtype=torch.int16)
    dist.all_to_all_single(output, source, [2 if RANK == 0 else 0] * RANKS, [2] + [0] * (RANKS - 1))
    assert RANK or output.tolist() == [rank for rank in range(RANKS) for _ in range(2)]
    # Only rank 0 sends.
    output = torch.empty(2, dtype=torch.int16)
    source = torch.arange(2 * RANKS if RANK == 0 else 0, dtype=torch.int16)
    dist.all_to_all_single(output, source, [2] + [0] * (RANKS - 1), [2 if RANK == 0 else 0] * RANKS)
    assert output.tolist() == [2 * RANK, 2 * RANK + 1]
    gathered = [torch.empty(size) for size in sizes]
    dist.all_gather(gathered, torch.full((RANK + 1,), float(RANK)))
    assert [piece.mean().item() for piece in gathered] == list(range(RANKS))
    right, left = (RANK + 1) % RANKS, (RANK - 1) % RANKS
    received = torch.empty(5)
    operations = [
        dist.P2POp(dist.isend, torch.full((5,), float(RANK)), right),
        dist.P2POp(dist.irecv, received, left),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert received.eq(left).all()
    if RANK == 0:
        dist.send(torch.arange(6.0).view(2, 3).t(), 1)
    elif RANK == 1:
        tensor = torch.empty(3, 2)
        dist.recv(tensor, 0)
        assert torch.equal(tensor, torch.arange(6.0).view(2, 3).t())
    dist.barrier()


def objects(_):
    mine = {"rank": RANK, "text": "x" * (100 * RANK)}
    every = [None] * RANKS
    dist.all_gather_object(every, mine)
    assert [item["rank"] for item in every] == list(range(RANKS)) and len(every[2]["text"]) == 200
    shared = [mine] if RANK == 1 else [None]
    dist.broadcast_object_list(shared, 1)
    assert shared[0]["rank"] == 1
    gathered = [None] * RANKS if RANK == 0 else None
    dist.gather_object(mine, gathered, 0)
    assert RANK or [item["rank"] for item in gathered] == list(range(RANKS))
    scattered = [None]
    dist.scatter_object_list(scattered, [{"to": rank} for rank in range(RANKS)] if RANK == 0 else None, 0)
    assert scattered == [{"to": RANK}]
    if RANK == 0:
        dist.send_object_list(["a", 3], 1)
    elif RANK == 1:
        received = [None, None]
        dist.recv_object_list(received, 0)
        assert received == ["a", 3]


def works(_):
    """Async works: many at a time, dropped at once, waited by their futures, in groups of calls."""
    tensors = [torch.full((1000,), float(RANK + i)) for i in range(200)]
    pending = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in reversed(pending):
        work.wait()
    for i, tensor in enumerate(tensors):
        assert tensor.eq(sum(range(RANKS)) + RANKS * i).all()
    for _ in range(100):
        dist.all_reduce(torch.ones(1000), async_op=True)  # nothing holds the work or the tensor
    gc.collect()
    tensor = torch.ones(4)
    future = dist.all_reduce(tensor, async_op=True).get_future()
    assert future.wait()[0] is tensor or torch.equal(future.wait()[0], tensor)
    assert future.done() and tensor.eq(RANKS).all()
    chained = dist.all_reduce(tensor, async_op=True).get_future().then(lambda done: done.value()[0] * 2)
    assert chained.wait().eq(2 * RANKS * RANKS).all()
    ended = dist.group.WORLD._get_backend(torch.device("cpu")).allreduce([tensor], dist.AllreduceOptions())
    ended.wait()
    assert ended.get_future().done()
    small = [torch.full((3,), float(i)) for i in range(20)]
    with dist._coalescing_manager():
        for piece in small:
            dist.all_reduce(piece)
    assert [piece[0].item() for piece in small] == [RANKS * i for i in range(20)]


def mistakes(_):
    """Refused calls raise weft's exceptions, and the group stays usable."""
    with pytest.raises(weft.WeftError, match="no dtype f32"):
        dist.all_reduce(torch.ones(3), dist.ReduceOp.BAND)
    with pytest.raises((weft.Unsupported, RuntimeError), match="tag 0"):
        dist.send(torch.ones(3), (RANK + 1) % RANKS, tag=7)
    with pytest.raises(weft.InvalidArgument, match="does not hold 3 pieces"):
        dist.all_gather_into_tensor(torch.ones(7), torch.ones(2))
    with pytest.raises((weft.Unsupported, RuntimeError), match="sparse|dense"):
        dist.all_reduce(torch.eye(3).to_sparse())
    dist.barrier()


def functional(_):
    """Functional collectives, and through them autograd's all_reduce."""
    group = dist.group.WORLD
    summed = functional_collectives.all_reduce(torch.full((4,), float(RANK)), "sum", group)
    assert summed.eq(sum(range(RANKS))).all()
    gathered = functional_collectives.all_gather_single(torch.full((2,), float(RANK)), 0, group)
    assert gathered.tolist() == [float(rank) for rank in range(RANKS) for _ in range(2)]
    piece = functional_collectives.reduce_scatter_single(torch.ones(2 * RANKS), "sum", 0, group)
    assert piece.eq(RANKS).all()
    swapped = functional_collectives.all_to_all_single(
        torch.arange(RANKS * 1.0) + RANK * 10, None, None, group
    )
    assert swapped.tolist() == [RANK + 10.0 * rank for rank in range(RANKS)]


def memory(_):
    """Memory that the backend allocates is weft's, and collectives on it give the same results."""
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert backend.supports_tensor_alloc(torch.device("cpu"))
    tensor = backend.allocate_tensor(1000, dtype=torch.float32, device=torch.device("cpu"))
    tensor.fill_(RANK)
    dist.all_reduce(tensor)
    assert tensor.eq(sum(range(RANKS))).all()
    # A block is used again when its last tensor is freed, and not before.
    place, piece = tensor.data_ptr(), tensor[10:20]
    del tensor
    other = backend.allocate_tensor(1000, dtype=torch.float32, device=torch.device("cpu"))
    assert other.data_ptr() != place and piece.eq(sum(range(RANKS))).all()
    work = dist.all_reduce(piece, async_op=True)
    del piece
    work.wait()
    del work
    backend.barrier().wait()
    for _ in range(70):  # the backend drops the works that have ended
        dist.all_reduce(torch.ones(1))
    gc.collect()
    again = [backend.allocate_tensor(990, dtype=torch.float32, device=torch.device("cpu")) for _ in range(2)]
    assert place in [each.data_ptr() for each in again]
    assert backend.allocate_tensor(0, dtype=torch.int64).numel() == 0
