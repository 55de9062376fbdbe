"""DistributedOptimizer with outer steps against a run in one process: local AdamW, the mean of weights, a checkpoint."""

import copy

import pytest

torch = pytest.importorskip("torch")

RANKS, STEPS, EVERY = 2, 7, 3
OUTER = {"every": EVERY, "codec": "dense", "optimizer": "sgd", "lr": 1.0}  # the mean of the weights


def network(seed=1):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def local_loss(model, number, rank):
    generator = torch.Generator().manual_seed(100 * number + rank)
    rows = torch.randn(8, 6, generator=generator), torch.randn(8, 2, generator=generator)
    return torch.nn.functional.mse_loss(model(rows[0]), rows[1])


def expected(steps):
    """The weights of each rank: both are trained here, and averaged every EVERY steps."""
    models = [network() for _ in range(RANKS)]
    optimizers = [adamw(model) for model in models]
    for number in range(steps):
        for rank, model in enumerate(models):
            optimizers[rank].zero_grad()
            local_loss(model, number, rank).backward()
            optimizers[rank].step()
        if (number + 1) % EVERY == 0:
            with torch.no_grad():
                for parameters in zip(*(model.parameters() for model in models)):
                    mean = sum(parameters) / RANKS
                    for parameter in parameters:
                        parameter.copy_(mean)
    return [[parameter.detach() for parameter in model.parameters()] for model in models]


def compare(model, wanted):
    for parameter, value in zip(model.parameters(), wanted):
        assert (parameter - value).abs().max() < 1e-6, (parameter - value).abs().max()


def train(optimizer, model, rank, numbers):
    for number in numbers:
        optimizer.zero_grad()
        with optimizer.no_sync():
            local_loss(model, number, rank).backward()
        optimizer.step()
        assert not optimizer.skipped


def outer_steps():
    import weft.torch

    with weft.init() as session:
        rank = session.rank
        model = network(seed=1 + rank)  # rank 0's parameters are copied
        optimizer = weft.torch.DistributedOptimizer(adamw(model), model.named_parameters(), outer=OUTER)
        assert isinstance(optimizer, weft.torch.OuterOptimizer) and optimizer.param_groups[0]["lr"] == 1e-2
        train(optimizer, model, rank, range(STEPS))
        compare(model, expected(STEPS)[rank])

        # a checkpoint between two exchanges continues as if there was none
        saved = copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        train(optimizer, model, rank, range(STEPS, STEPS + 4))
        undisturbed = [parameter.detach().clone() for parameter in model.parameters()]
        optimizer.close()
        model = network(seed=9)
        model.load_state_dict(saved["model"])
        optimizer = weft.torch.DistributedOptimizer(adamw(model), model.named_parameters(), outer=OUTER)
        model.load_state_dict(saved["model"])  # the optimizer has copied rank 0's
        optimizer.load_state_dict(saved["optimizer"])
        train(optimizer, model, rank, range(STEPS, STEPS + 4))
        for parameter, value in zip(model.parameters(), undisturbed):
            assert torch.equal(parameter, value)

        # equal weights at the end; a weight that is not finite is refused on both ranks
        optimizer.sync()
        total = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
        mine, mean = total.clone(), total.clone()
        session.all_reduce(mean, op="avg").wait()
        assert torch.equal(mine, mean)
        with torch.no_grad():
            if rank == 1:
                next(model.parameters())[0, 0] = float("nan")
        skipped = 0
        for number in range(EVERY):
            optimizer.zero_grad()
            optimizer.step()
            skipped += optimizer.skipped
        assert skipped == 1 and all(parameter.isfinite().all() for parameter in model.parameters())
        optimizer.close()

        for bad, words in (({"codec": "int8"}, "codec and outer exclude"), ({"accumulate": 2}, "accumulate and outer")):
            try:
                weft.torch.DistributedOptimizer(adamw(model), model.named_parameters(), outer=OUTER, **bad)
            except weft.InvalidArgument as error:
                assert words in str(error), error
            else:
                raise AssertionError(f"{bad} was taken")


def test_outer_steps(job):
    job(RANKS, outer_steps)
