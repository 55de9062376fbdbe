"""weft.torch.elastic: survivors and newcomers train as the same ranks would have from the start."""

import pytest

torch = pytest.importorskip("torch")
if not hasattr(torch.Tensor, "register_post_accumulate_grad_hook"):
    pytest.skip("torch is older than 2.1", allow_module_level=True)

from test_torch_optim import adamw, batch, loss_of, mine, network  # noqa: E402

STEPS, LOSS = 12, 4


def gradients(model, optimizer, number, rank, ranks):
    optimizer.zero_grad()
    loss_of(model, mine(batch(number), rank, ranks)).backward()


def elastic(grown):
    import os
    import signal

    import weft
    from weft.torch.elastic import run
    from weft.torch.optim import DistributedOptimizer

    session = weft.init()
    model = network(seed=1 + session.rank)
    optimizer = DistributedOptimizer(adamw(model), model.named_parameters())
    sizes = {}

    def train_step(number):
        sizes[number] = session.ranks
        if number == LOSS and session.rank == 1 and session.ranks == 3 and not session.newcomer:
            loss = loss_of(model, mine(batch(number), 1, 3))
            loss.register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))  # inside backward
            loss.backward()
        gradients(model, optimizer, number, session.rank, session.ranks)
        optimizer.step()
        if grown and number > 2 * LOSS and session.ranks == 2:
            import time

            time.sleep(0.2)  # the restarted worker loads torch meanwhile

    changes = run(train_step, model, optimizer, 200 if grown else STEPS)
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


def test_survivors_continue(job):
    _, text = job.run(3, elastic, False, options=["--min-workers", "2"])
    lines = job.lines("ended:")
    assert len(lines) == 2 and all(line.endswith("2 1 [2, 3]") for line in lines), text


def test_a_restarted_worker_joins(job):
    _, text = job.run(3, elastic, True, options=["--min-workers", "2", "--restarts", "1"], timeout=240)
    lines = job.lines("ended:")
    assert len(lines) == 3 and all(line.split()[2] == "3" for line in lines), text
