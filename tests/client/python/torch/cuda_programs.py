"""Ranks of test_cuda.py: CUDA tensors in stream order, over the fake runtime. The oracle is a formula."""

import threading

import fake_cuda
import torch
import torch.distributed as dist

import weft.torch
from weft.torch._ddp_hook import DDPHook

torch.futures.Future = fake_cuda.Future
weft.torch.init_process_group()
RANK, RANKS = dist.get_rank(), dist.get_world_size()
COUNT = 5000


def mine(count=COUNT, dtype=torch.float32, rank=RANK):
    return (torch.arange(count) % 5 + rank).to(dtype)


def total(count=COUNT, dtype=torch.float32):
    return sum(mine(count, dtype, rank) for rank in range(RANKS))


def same(tensor, expected):
    assert torch.equal(fake_cuda.read(tensor), expected), (fake_cuda.read(tensor), expected)


def chain(_):
    """Each call reduces the result of the kernel behind the last one; no result is waited for on the host."""
    tensor = fake_cuda.tensor(mine())
    expected = [mine(rank=rank) for rank in range(RANKS)]
    for _ in range(4):
        dist.all_reduce(tensor)
        tensor.add_(1)
        expected = [sum(expected) + 1] * RANKS
    same(tensor, expected[RANK])
    assert fake_cuda.recorded, "no tensor was recorded on its side stream"


def collectives(_):
    for dtype in (torch.float32, torch.int16, torch.complex64):
        tensor = fake_cuda.tensor(mine(dtype=dtype))
        dist.all_reduce(tensor)
        same(tensor, total(dtype=dtype))
    tensor = fake_cuda.tensor(mine())
    dist.broadcast(tensor, 1)
    same(tensor, mine(rank=1))
    dist.reduce(tensor, 0)
    same(tensor, mine(rank=1) * (RANKS if RANK == 0 else 1))
    whole = fake_cuda.empty((RANKS * COUNT,))
    dist.all_gather_into_tensor(whole, fake_cuda.tensor(mine()))
    same(whole, torch.cat([mine(rank=rank) for rank in range(RANKS)]))
    pieces = [fake_cuda.empty((COUNT,)) for _ in range(RANKS)]
    dist.all_gather(pieces, fake_cuda.tensor(mine()))
    for rank, piece in enumerate(pieces):
        same(piece, mine(rank=rank))
    piece = fake_cuda.empty((COUNT,))
    dist.reduce_scatter(piece, [fake_cuda.tensor(mine()) for _ in range(RANKS)])
    same(piece, total())
    target = fake_cuda.empty((RANKS * 3,))
    dist.all_to_all_single(target, fake_cuda.tensor(mine(RANKS * 3)))
    same(target, torch.cat([mine(RANKS * 3, rank=rank)[3 * RANK : 3 * RANK + 3] for rank in range(RANKS)]))
    columns = fake_cuda.tensor(mine(20).reshape(10, 2))[:, 0]
    dist.all_reduce(columns)
    same(columns, total(20).reshape(10, 2)[:, 0])
    dist.barrier()


def sends(_):
    """Both ranks send before they receive: a call must not hold the stream of the next."""
    peer, sent, got = 1 - RANK, [], []
    for number in range(6):
        sent.append(dist.isend(fake_cuda.tensor(mine() + number), peer))
    for _ in range(6):
        got.append(fake_cuda.empty((COUNT,)))
        sent.append(dist.irecv(got[-1], peer))
    for work in sent:
        work.wait()
    for number, tensor in enumerate(got):
        same(tensor, mine(rank=peer) + number)


def host_is_free(session):
    """The call and its wait return while the stream has not reached it, and kernels run beside it."""
    gate, ran = threading.Event(), threading.Event()
    tensor = fake_cuda.empty((COUNT,))
    if RANK == 0:
        fake_cuda.queue(gate.wait)
    tensor.copy_(mine())
    if RANK == 0:
        dist.all_reduce(tensor)
        gate.set()
        work = dist.all_reduce(tensor, async_op=True)
        fake_cuda.queue(ran.set)  # the stream waits for the first result only
    if RANK == 1:
        dist.all_reduce(tensor)
        dist.recv(torch.zeros(1), 0)
        work = dist.all_reduce(tensor, async_op=True)
    else:
        assert fake_cuda.until(ran.is_set), "a call holds the stream of the trainer"
        dist.send(torch.zeros(1), 1)
    work.wait()
    same(tensor, total() * RANKS)


class Bucket:
    """As dist.GradBucket, for DDPHook.average."""

    def __init__(self, buffer, is_last):
        self._buffer, self.is_last = buffer, lambda: is_last

    def buffer(self):
        return self._buffer


def hook(session):
    gate, tensors = threading.Event(), []
    hook = DDPHook(torch.nn.Linear(1, 1), session=session)
    fake_cuda.queue(gate.wait)  # the backward pass is queued, and has not run
    futures = []
    for number in range(5):
        tensors.append(fake_cuda.tensor(mine() + number))
        futures.append(hook.average(None, Bucket(tensors[-1], number == 4)))
    gate.set()
    with fake_cuda.stream(fake_cuda.Stream()):  # of the thread that finishes the backward pass
        for number, future in enumerate(futures):
            buffer = future.wait()
            buffer.mul_(2)
            same(buffer, 2 * (total() / RANKS + number))


def gradients(session):
    """DistributedOptimizer: step() follows the gradients, which another thread's stream has pushed."""
    parameters = [(f"p{number}", torch.nn.Parameter(torch.zeros(COUNT))) for number in range(3)]
    optimizer = weft.torch.DistributedOptimizer(None, parameters)  # no step of an optimizer, which loads the compiler
    exchange, kept = optimizer._exchange, []

    def backward():
        with fake_cuda.stream(fake_cuda.Stream()):
            for index, (_, parameter) in enumerate(parameters):
                kept.append(fake_cuda.tensor(mine() + index))
                parameter.grad = kept[-1]
                exchange.ready.add(index)
                exchange._push_ready(index)

    thread = threading.Thread(target=backward)
    thread.start()
    thread.join()
    optimizer.synchronize()
    for index, gradient in enumerate(kept):
        same(gradient, total() / RANKS + index)
    optimizer.close()


def tensors(session):
    """push_pull of CUDA and host arrays of one tensor in turn, with and without stream order; codec and optimizer."""
    plain = session.declare("plain", COUNT)
    coded = session.declare("coded", COUNT, codec="f16")
    trained = session.declare("trained", COUNT, optimizer="sgd")
    weights = torch.zeros(COUNT)
    trained.init(weights)
    expected = weights.clone()
    weights = fake_cuda.tensor(weights)
    for step in range(4):
        session.step_begin(lr=1.0)
        gradients = [fake_cuda.tensor(mine() + step) for _ in range(3)]
        on_host = mine() + step
        ordered = step != 1
        requests = [plain.push_pull(on_host if step == 2 else gradients[0], on_stream=ordered),
                    coded.push_pull(gradients[1], on_stream=ordered),
                    trained.push_pull(gradients[2], weights, on_stream=ordered)]  # fmt: skip
        mean = total() / RANKS + step
        expected -= mean
        if not ordered or step == 2:
            for request in requests:
                request.wait()
        assert step != 2 or torch.equal(on_host, mean)
        if step != 2:
            same(gradients[0], mean)
        same(gradients[1], mean)
        same(weights, expected)
        session.step_end()


class Array:
    """An object with the CUDA Array Interface alone."""

    def __init__(self, tensor, stream):
        self.__cuda_array_interface__ = {
            "shape": (COUNT,), "typestr": "<f4", "data": (tensor.data_ptr(), False), "version": 3, "stream": stream,
            "strides": None,
        }  # fmt: skip


def interface(session):
    tensor = fake_cuda.tensor(mine())
    session.all_reduce(Array(tensor, fake_cuda.current_stream().cuda_stream)).wait()
    same(tensor, total())


def fails(session):
    """The streams continue after a loss, and the next call has the reason."""
    tensor = fake_cuda.tensor(mine())
    if RANK == 1:
        session.abort("the test ends the job")
    else:
        try:
            for _ in range(10000):
                dist.all_reduce(tensor)
        except weft.WeftError as error:
            assert "the test ends the job" in str(error), error
            print("named:", error)
        fake_cuda.read(tensor)
        print("the stream continues")
