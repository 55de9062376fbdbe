"""weft.torch.Optimizer with parameter groups, clipping, a loss scale and checkpoints against torch.optim on one rank with the whole batch.

torch takes seconds to load, so one job runs several functions. Optimizers are made before the session's first step.
"""

import pathlib

import pytest

torch = pytest.importorskip("torch")

from test_torch_optim import IS_OLD, Branches, batch, compare, loss_of, mine, network  # noqa: E402

CLIP = 0.2


def groups_of(model, named):
    """Two parameter groups: weights with decay, biases without and with a larger rate."""
    pairs = list(model.named_parameters())
    weights, biases = ([pair for pair in pairs if pair[0].endswith(end)] for end in ("weight", "bias"))
    plain = [[parameter for _, parameter in pairs] for pairs in (weights, biases)]
    return [
        {"params": weights if named else plain[0], "weight_decay": 0.1},
        {"params": biases if named else plain[1], "lr": 3e-2, "weight_decay": 0.0},
    ]


def schedule_of(optimizer):
    """Rates that change by step, differently in each group."""
    return torch.optim.lr_scheduler.LambdaLR(optimizer, [lambda step: 0.5**step, lambda step: 1 / (1 + step)])


def grouped_reference(steps, first=0, clip=CLIP, decay_from=None):
    """The run on one rank, and the global norm of each step's gradients."""
    model, norms = network(), []
    optimizer = torch.optim.AdamW(groups_of(model, False), lr=1e-2)
    schedule = schedule_of(optimizer)
    for number in range(steps):
        if number == decay_from:
            optimizer.param_groups[0]["weight_decay"] = 0.5
        optimizer.zero_grad()
        loss_of(model, batch(number)).backward()
        if clip:
            norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), clip).item())
        optimizer.step()
        schedule.step()
    return model, norms


def grouped(session, steps=6):
    """Groups with own and changing rates and decays, clipped, two backward passes per step."""
    from weft.torch import Optimizer

    model, norms = network(seed=1 + session.rank), []  # rank 0's parameters reach all ranks
    optimizer = Optimizer(groups_of(model, True), "adamw", 1e-2, clip_norm=CLIP)
    schedule = schedule_of(optimizer)
    yield  # the other optimizers of the session are made
    for number in range(steps):
        if number == 4:
            optimizer.param_groups[0]["weight_decay"] = 0.5
        optimizer.zero_grad()
        rows = mine(batch(number), session.rank, session.ranks)
        with optimizer.no_sync():
            (loss_of(model, mine(rows, 0, 2)) / 2).backward()
        (loss_of(model, mine(rows, 1, 2)) / 2).backward()
        optimizer.step()
        schedule.step()
        norms.append(optimizer.grad_norm)
    expected, wanted = grouped_reference(steps, decay_from=4)
    compare(model, expected.parameters())
    assert max(wanted) > CLIP  # clipping was at work
    assert all(abs(a - b) < 1e-4 * b for a, b in zip(norms, wanted)), (norms, wanted)


def branch_losses(model, number, ranks):
    """Each rank uses another branch, so it leaves out parameters that others use; one branch is never used."""
    for rank in range(ranks):
        inputs, targets = mine(batch(number), rank, ranks)
        yield torch.nn.functional.mse_loss(model(inputs, left=(rank + number) % 2 == 0), targets)


def unused_and_scaled(session):
    """Parameters without a gradient on some ranks, a loss scale, and a step that is not finite on one rank."""
    from weft.torch import Optimizer

    model, alone = Branches(), Branches()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=2)
    optimizer = Optimizer(model.named_parameters(), "sgd:momentum=0.9", 0.05, scaler=scaler)
    expected = torch.optim.SGD(alone.parameters(), lr=0.05, momentum=0.9)
    yield
    scales = []
    for number in range(6):
        optimizer.zero_grad()
        loss = list(branch_losses(model, number, session.ranks))[session.rank]
        if number == 3 and session.rank == 0:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        optimizer.step()
        scales.append(scaler.get_scale() / 2**12)
        assert optimizer.skipped == (number == 3)
        if number != 3:
            expected.zero_grad(set_to_none=False)
            (sum(branch_losses(alone, number, session.ranks)) / session.ranks).backward()
            for parameter in alone.parameters():  # a parameter that no rank uses gets zeros; its momentum still moves it
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            expected.step()
    compare(model, alone.parameters())
    assert scales == [1, 2, 2, 1, 1, 2], scales


def asked_to_skip(session, kind):
    """A rank without a usable gradient: no rank takes the step, and the run equals the one without it."""
    from weft.torch import DistributedOptimizer, Optimizer

    model, alone = network(), network()
    if kind == "library":
        optimizer = Optimizer(model.named_parameters(), "sgd:momentum=0.9", 0.05)
    else:
        optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), model.named_parameters())
    expected = torch.optim.SGD(alone.parameters(), lr=0.05, momentum=0.9)
    yield
    for number in range(4):
        before = [parameter.detach().clone() for parameter in model.parameters()]
        optimizer.zero_grad()
        if number == 2 and session.rank == 1:
            optimizer.skip_step()
        else:
            loss_of(model, mine(batch(number), session.rank, session.ranks)).backward()
        optimizer.step()
        assert optimizer.skipped == (number == 2)
        assert all((a == b).all() for a, b in zip(before, model.parameters())) == (number == 2)
        if number != 2:
            expected.zero_grad()
            loss_of(alone, batch(number)).backward()
            expected.step()
    compare(model, alone.parameters())


def all_reduce_rules():
    import weft

    with weft.init() as session:
        runs = [grouped(session), unused_and_scaled(session), asked_to_skip(session, "library"), asked_to_skip(session, "torch")]
        if IS_OLD:
            del runs[1]
        for run in runs:
            next(run)
        for run in runs:
            assert next(run, None) is None


def test_groups_clipping_scaling_and_skips_equal_one_rank(job):
    job(2, all_reduce_rules)


def server_rules():
    """Rates of groups and clipping through shards; what they cannot do is refused with a sentence."""
    import weft
    from weft.torch import Optimizer

    with weft.init() as session:
        model = network()
        try:
            Optimizer(model.named_parameters(), "sgd", 0.1, clip_norm=1.0, codec="int8")
        except weft.Unsupported as error:
            assert "all_reduce" in str(error)
        else:
            raise AssertionError("clip_norm was taken in server mode with a codec")
        optimizer, norms = Optimizer(groups_of(model, True), "adamw", 1e-2, clip_norm=CLIP), []
        schedule = schedule_of(optimizer)
        for number in range(6):
            if number == 4:
                optimizer.param_groups[0]["weight_decay"] = 0.5
            optimizer.zero_grad()
            if number == 5:  # a rank without a gradient: the shards update nothing, then the step is repeated
                if session.rank == 1:
                    optimizer.skip_step()
                else:
                    loss_of(model, mine(batch(number), session.rank, session.ranks)).backward()
                optimizer.step()
                assert optimizer.skipped
                optimizer.zero_grad()
            loss_of(model, mine(batch(number), session.rank, session.ranks)).backward()
            optimizer.step()
            assert not optimizer.skipped
            schedule.step()
            norms.append(optimizer.grad_norm)
        expected, wanted = grouped_reference(6, decay_from=4)
        compare(model, expected.parameters())
        assert max(wanted) > CLIP
        assert all(abs(a - b) < 1e-4 * b for a, b in zip(norms, wanted)), (norms, wanted)


def test_rates_decays_and_skips_reach_the_shards(job):
    job.run(2, server_rules, options=["-s", "2"])


def continued(folder, first, stop, mode):
    """Steps first .. stop-1 from the files of the steps before, on any number of ranks with shares of unequal length."""
    import weft
    from weft.torch import Optimizer

    folder = pathlib.Path(folder)
    with weft.init() as session:
        model = network()
        if first:
            model.load_state_dict(torch.load(folder / "model"))
        optimizer = Optimizer(groups_of(model, True), "adamw", 1e-2, mode=mode)
        schedule = schedule_of(optimizer)
        if first:
            optimizer.load_state_dict(torch.load(folder / "optimizer"))
            schedule.load_state_dict(torch.load(folder / "schedule"))
        for number in range(first, stop):
            rows = mine(batch(number), session.rank, session.ranks)
            optimizer.sample_weight = len(rows[0])
            optimizer.zero_grad()
            loss_of(model, rows).backward()
            optimizer.step()
            schedule.step()
        state = optimizer.state_dict()
        if session.rank == 0:
            torch.save(model.state_dict(), folder / "model")
            torch.save(state, folder / "optimizer")
            torch.save(schedule.state_dict(), folder / "schedule")
        session.barrier().wait()


def test_a_checkpoint_continues_on_another_number_of_ranks(job, tmp_path):
    for ranks, first, stop, shards in ((2, 0, 2, 0), (3, 2, 4, 2), (1, 4, 6, 0)):
        job(ranks, continued, str(tmp_path), first, stop, "server" if shards else None, options=["-s", str(shards)])
    model = network()
    model.load_state_dict(torch.load(tmp_path / "model"))
    compare(model, grouped_reference(6, clip=None)[0].parameters())
