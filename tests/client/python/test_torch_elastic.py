"""weft.torch.elastic: survivors and newcomers train as the same ranks would have from the start."""

import pytest

torch = pytest.importorskip("torch")

from test_torch_optim import adamw, batch, loss_of, mine, network  # noqa: E402

STEPS, LOSS = 12, 4


def gradients(model, optimizer, number, rank, ranks):
    optimizer.zero_grad()
    loss_of(model, mine(batch(number), rank, ranks)).backward()


class Full(Exception):
    """The job has had all its ranks again for some steps."""


def is_full_again(sizes, ranks):
    """Whether at least five good steps after the loss had all ranks. sizes: ranks by step. Equal on all ranks."""
    return sum(step > LOSS and size == ranks for step, size in sizes.items()) > 4


def run_until_full(train_step, model, optimizer):
    """The loop of weft.torch.elastic until train_step raises Full: no rank waits a fixed time for the new one."""
    from weft.torch.elastic import run

    try:
        return run(train_step, model, optimizer, 10**9)
    except Full:
        return None


def elastic(grown):
    import os
    import signal
    import time

    import weft
    from weft.torch.elastic import run
    from weft.torch.optim import DistributedOptimizer

    session = weft.init()
    model = network(seed=1 + session.rank)
    optimizer = DistributedOptimizer(adamw(model), model.named_parameters())
    sizes = {}

    def train_step(number):
        if grown and is_full_again(sizes, 3):
            raise Full
        if number == LOSS and session.rank == 1 and session.ranks == 3 and not session.newcomer:
            loss = loss_of(model, mine(batch(number), 1, 3))
            loss.register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))  # inside backward
            loss.backward()
        gradients(model, optimizer, number, session.rank, session.ranks)
        optimizer.step()
        sizes[number] = session.ranks
        if grown and number > 2 * LOSS and session.ranks == 2:
            time.sleep(0.1)  # until the restarted worker has loaded torch

    changes = run_until_full(train_step, model, optimizer) if grown else run(train_step, model, optimizer, STEPS)
    rows = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    everywhere = torch.empty(session.ranks, rows.numel())
    session.all_gather(rows, everywhere).wait()
    assert (everywhere == rows).all()
    print("ended:", session.rank, session.ranks, changes, sorted(set(sizes.values())))
    if not grown:
        expected = network()
        inner = adamw(expected)
        for number in range(1, STEPS + 1):  # the mean over the ranks of that step, on one rank
            ranks = 3 if number < LOSS else 2
            inner.zero_grad()
            sum(loss_of(expected, mine(batch(number), rank, ranks)) / ranks for rank in range(ranks)).backward()
            inner.step()
        for parameter, wanted in zip(model.parameters(), expected.parameters()):
            assert (parameter - wanted).abs().max() < 1e-4
    session.finalize()


def library(ranks):
    """One rank is lost and one joins: all train with weft's optimizer, as one rank would have."""
    import os
    import signal
    import time
    import zlib

    import weft
    from weft.torch.optim import Optimizer

    session = weft.init()
    model = network(seed=1 + session.rank)
    optimizer = Optimizer(model.named_parameters(), "adamw:weight_decay=0.01", 1e-2)
    first, sizes, after = session.rank, {}, {}

    def train_step(number):
        if is_full_again(sizes, ranks):
            raise Full
        after[number - 1] = [parameter.detach().clone() for parameter in model.parameters()] if number <= STEPS else None
        if number == LOSS and first == 1 and not session.newcomer:
            os.kill(os.getpid(), signal.SIGKILL)
        gradients(model, optimizer, number, session.rank, session.ranks)
        optimizer.step()
        sizes[number] = session.ranks
        if number >= STEPS and session.ranks < ranks:
            time.sleep(0.1)  # until the restarted worker has loaded torch

    run_until_full(train_step, model, optimizer)
    state = b"".join(tensor.state() for tensor in optimizer._exchange.tensors)
    rows = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    mine_here = torch.tensor([zlib.crc32(rows.numpy().tobytes()), zlib.crc32(state)])
    everywhere = torch.empty(session.ranks, 2, dtype=mine_here.dtype)
    session.all_gather(mine_here, everywhere).wait()
    assert (everywhere == mine_here).all(), everywhere
    if not session.newcomer:
        expected = network()
        inner = adamw(expected)
        for number in range(1, STEPS):
            inner.zero_grad()
            now = range(sizes[number])
            sum(loss_of(expected, mine(batch(number), rank, len(now))) / len(now) for rank in now).backward()
            inner.step()
        for parameter, wanted in zip(after[STEPS - 1], expected.parameters()):
            assert (parameter - wanted).abs().max() < 1e-4
    print("ended:", session.rank, session.ranks, session.newcomer)
    session.finalize()


def test_the_library_optimizer_with_a_restarted_worker(job):
    _, text = job.run(2, library, 2, options=["--min-workers", "1", "--restarts", "1"], timeout=280)
    assert sorted(job.lines("ended:")) == ["ended: 0 2 False", "ended: 1 2 True"], text


def test_survivors_continue(job):
    _, text = job.run(3, elastic, False, options=["--min-workers", "2"], timeout=240)
    lines = job.lines("ended:")
    assert len(lines) == 2 and all(line.endswith("2 1 [2, 3]") for line in lines), text


def test_a_restarted_worker_joins(job):
    _, text = job.run(3, elastic, True, options=["--min-workers", "2", "--restarts", "1"], timeout=240)
    lines = job.lines("ended:")
    assert len(lines) == 3 and all(line.split()[2] == "3" for line in lines), text
