"""weft.torch optimizers against torch.optim on one rank with the whole batch.

torch takes seconds to load, so one job runs several functions.
"""

import pytest

torch = pytest.importorskip("torch")
# PyTorch before 2.3 has no GradScaler and not all 16-bit operations on the CPU.
IS_OLD = not hasattr(torch.amp, "GradScaler")


def network(seed=1):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(12, 32), torch.nn.Tanh(), torch.nn.Linear(32, 32), torch.nn.Tanh(),
                               torch.nn.Linear(32, 3))  # fmt: skip


def batch(number, rows=16):
    generator = torch.Generator().manual_seed(1000 + number)
    return torch.randn(rows, 12, generator=generator), torch.randn(rows, 3, generator=generator)


def loss_of(model, rows):
    inputs, targets = rows
    return torch.nn.functional.mse_loss(model(inputs), targets)


def mine(rows, rank, ranks):
    return tuple(part[rank::ranks] for part in rows)


def reference(make, steps):
    """The parameters of a run on one rank with the whole batch."""
    model = network()
    optimizer = make(model)
    for number in range(steps):
        optimizer.zero_grad()
        loss_of(model, batch(number)).backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def compare(model, expected, tolerance=5e-5):
    for parameter, wanted in zip(model.parameters(), expected):
        assert (parameter - wanted).abs().max() < tolerance, (parameter - wanted).abs().max()


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.01)


def distributed(session, steps, accumulate, way):
    from weft.torch.optim import DistributedOptimizer

    model = network(seed=1 + session.rank)  # rank 0's parameters are copied
    optimizer = DistributedOptimizer(adamw(model), model.named_parameters(), accumulate=accumulate if way == "count" else 1)
    for number in range(steps):
        optimizer.zero_grad()
        rows = mine(batch(number), session.rank, session.ranks)
        for part in range(accumulate):
            one = mine(rows, part, accumulate)
            if way == "no_sync" and part < accumulate - 1:
                with optimizer.no_sync():
                    (loss_of(model, one) / accumulate).backward()
            else:
                (loss_of(model, one) / accumulate).backward()
        optimizer.step()
    compare(model, reference(adamw, steps))


def library(session, mode, steps):
    from weft.torch.optim import Optimizer

    model = network()
    optimizer = Optimizer(model.named_parameters(), "adamw:weight_decay=0.01", 1e-2, mode=mode)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    for number in range(steps):
        optimizer.zero_grad()
        loss_of(model, mine(batch(number), session.rank, session.ranks)).backward()
        optimizer.step()
        schedule.step()

    expected_model = network()
    expected = adamw(expected_model)
    schedule = torch.optim.lr_scheduler.StepLR(expected, 3, 0.5)
    for number in range(steps):
        expected.zero_grad()
        loss_of(expected_model, batch(number)).backward()
        expected.step()
        schedule.step()
    compare(model, expected_model.parameters())


class Branches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.stem, self.left, self.right, self.never = (torch.nn.Linear(12, 12) for _ in range(4))
        self.head = torch.nn.Linear(12, 3)

    def forward(self, inputs, left=True, order=True):
        hidden = self.stem(inputs)
        if left is None:
            first, second = (self.left, self.right) if order else (self.right, self.left)
            return self.head(first(second(hidden)))
        return self.head((self.left if left else self.right)(hidden))


def branches(session):
    from weft.torch.optim import DistributedOptimizer

    model = Branches()
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1),
                                     model.named_parameters(), find_unused_parameters=True)  # fmt: skip
    alone = Branches()
    expected = torch.optim.SGD(alone.parameters(), lr=0.1, weight_decay=0.1)
    for number in range(4):
        losses = []
        for rank in range(session.ranks):
            inputs, targets = mine(batch(number), rank, session.ranks)
            kind = dict(left=rank == 0) if number % 2 else dict(left=None, order=rank == 0)
            losses.append(torch.nn.functional.mse_loss(alone(inputs, **kind), targets))
        expected.zero_grad()
        (sum(losses) / session.ranks).backward()
        expected.step()

        inputs, targets = mine(batch(number), session.rank, session.ranks)
        kind = dict(left=session.rank == 0) if number % 2 else dict(left=None, order=session.rank == 0)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs, **kind), targets).backward()
        optimizer.step()
        assert model.never.weight.grad is None
    compare(model, alone.parameters())


def unused_refused():
    import weft
    from weft.torch.optim import DistributedOptimizer

    session = weft.init()
    model = Branches()
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    model(batch(0)[0]).sum().backward()
    try:
        optimizer.step()
    except weft.WrongState as error:
        print("refused:", error)
    session.barrier().wait()
    session.abort("test ends")


def test_missing_gradients_are_named(job):
    _, text = job.run(2, unused_refused)
    lines = job.lines("refused:")
    assert len(lines) == 2, text
    assert all("'right.weight'" in line and "find_unused_parameters" in line for line in lines)


def scaled(session, way):
    from weft.torch import optim

    if IS_OLD:
        return
    model = network()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    if way == "library":
        optimizer = optim.Optimizer(model.named_parameters(), "sgd", 0.1, codec="bf16", scaler=scaler)
    else:
        optimizer = optim.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(),
                                               codec="bf16" if way == "codec" else None)  # fmt: skip
    scales = []
    for number in range(6):
        before = [parameter.detach().clone() for parameter in model.parameters()]
        optimizer.zero_grad()
        loss = loss_of(model, mine(batch(number), session.rank, session.ranks))
        if number == 2 and session.rank == 1:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        if way == "library":
            optimizer.step()
        else:
            optimizer.synchronize()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        same = all((a == b).all() for a, b in zip(before, model.parameters()))
        assert same == (number == 2), number
        scales.append(scaler.get_scale())
    assert scales == [1024, 1024, 512, 512, 512, 1024], scales
    rows = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    everywhere = torch.empty(session.ranks, rows.numel())
    session.all_gather(rows, everywhere).wait()
    assert (everywhere == rows).all()


def resumed(session, folder, first, stop, library_runs):
    import pathlib

    from weft.torch import optim

    folder = pathlib.Path(folder)
    model = network()
    if first:
        model.load_state_dict(torch.load(folder / "model"))
    if library_runs:
        optimizer = optim.Optimizer(model.named_parameters(), "adamw", 1e-2, codec="topk:ratio=0.1")
    else:
        optimizer = optim.DistributedOptimizer(adamw(model), model.named_parameters(), codec="topk:ratio=0.1")
    if first:
        path = folder / f"optimizer{session.rank}"
        state = torch.load(path if path.exists() else folder / "optimizer0")
        if not path.exists():
            state["weft_residual"] = {}
        optimizer.load_state_dict(state)
    for number in range(first, stop):
        optimizer.zero_grad()
        loss_of(model, mine(batch(number), session.rank, session.ranks)).backward()
        optimizer.step()
    torch.save(optimizer.state_dict(), folder / f"optimizer{session.rank}")
    if session.rank == 0:
        torch.save(model.state_dict(), folder / "model")
    session.barrier().wait()


def trained(session, codec):
    from weft.torch.optim import DistributedOptimizer

    model = network()
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), codec=codec)
    rows = batch(0, 64)
    first = loss_of(model, rows).item()
    for _ in range(60):
        optimizer.zero_grad()
        loss_of(model, mine(rows, session.rank, session.ranks)).backward()
        optimizer.step()
    assert loss_of(model, rows).item() < 0.9 * first


def library_mode():
    import weft
    from weft.torch.optim import Optimizer

    with weft.init() as session:
        library(session, "all_reduce", 8)
        try:
            Optimizer(network().named_parameters(), "adam", 1e-2)
        except weft.WrongState as error:
            assert "first step" in str(error)
        else:
            raise AssertionError("a late optimizer was made")


def all_reduce_mode():
    import weft

    with weft.init() as session:
        scaled(session, "library")
        for accumulate, way in ((1, "count"), (2, "count"), (2, "no_sync")):
            distributed(session, 6, accumulate, way)
        branches(session)
        for way in ("codec", "dense"):
            scaled(session, way)
        for codec in ("bf16", "powersgd:rank=2", "topk:ratio=0.25", "int8", "auto"):
            trained(session, codec)


def test_library_optimizer(job):
    job(2, library_mode)


def test_all_reduce_mode(job):
    job(2, all_reduce_mode)


def sixteen_bits(session, kind, dtype):
    """A function that trains a network of dtype, or one whose weights arrive rounded, beside float32 weights on one rank.

    Gradients are those of rounded weights; their mean and the update are float32. The updates are mostly smaller than a
    unit of the weights: weights that were updated in dtype would not move.
    """
    from weft.torch.optim import Optimizer

    model = network().to(dtype) if kind == "dtype" else network()
    optimizer = Optimizer(model.named_parameters(), "sgd:momentum=0.9", 2e-4,
                          pull_dtype="bf16" if kind == "pull_dtype" else None)  # fmt: skip
    master, half = network().to(dtype if kind == "dtype" else torch.float32).float(), network().to(model[0].weight.dtype)
    expected = torch.optim.SGD(master.parameters(), lr=2e-4, momentum=0.9)

    def train(steps):
        first = [parameter.detach().clone() for parameter in model.parameters()]
        for number in range(steps):
            for parameter in master.parameters():
                parameter.grad = torch.zeros_like(parameter)
            for rank in range(session.ranks):
                rows = [part.to(half[0].weight.dtype) for part in mine(batch(number), rank, session.ranks)]
                half.zero_grad()
                loss_of(half, rows).backward()
                for parameter, own in zip(master.parameters(), half.parameters()):
                    parameter.grad += own.grad.float() / session.ranks
            expected.step()
            with torch.no_grad():
                for parameter, own in zip(master.parameters(), half.parameters()):
                    own.copy_(parameter.to(dtype))
            optimizer.zero_grad()
            rows = mine(batch(number), session.rank, session.ranks)
            loss_of(model, [part.to(half[0].weight.dtype) for part in rows]).backward()
            optimizer.step()
        unit = 2.0**-8 if dtype == torch.bfloat16 else 2.0**-11
        moved = 0
        for parameter, wanted, before in zip(model.parameters(), master.parameters(), first):
            assert ((parameter - wanted).abs() <= unit * wanted.abs() + 2e-5).all(), (kind, dtype)
            moved += (parameter != before).sum().item()
        assert moved > 100, moved

    return train


def server_mode():
    import weft

    with weft.init() as session:
        kinds = ("dtype", torch.bfloat16), ("dtype", torch.float16), ("pull_dtype", torch.bfloat16)
        trains = [sixteen_bits(session, kind, dtype) for kind, dtype in kinds if not IS_OLD]
        library(session, "server", 8)
        for train in trains:
            train(10)
        trained(session, "powersgd:rank=2")


def test_server_mode(job):
    job(2, server_mode, options=["-s", "2"])


def resume(folder, first, stop):
    import weft

    with weft.init() as session:
        for kind in ("library", "distributed"):  # the library's first: it begins with the first step
            resumed(session, f"{folder}/{kind}", first, stop, kind == "library")


def test_resume_continues_bit_for_bit(job, tmp_path):
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    for folder in (whole, halves):
        for kind in ("library", "distributed"):
            (folder / kind).mkdir(parents=True)
    job(2, resume, str(whole), 0, 8)
    job(2, resume, str(halves), 0, 4)
    job(2, resume, str(halves), 4, 8)
    for kind in ("library", "distributed"):
        one, two = torch.load(whole / kind / "model"), torch.load(halves / kind / "model")
        assert all((one[name] == two[name]).all() for name in one)
    job(3, resume, str(halves), 8, 10)  # another number of ranks
