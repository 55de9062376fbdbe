"""Ranks of test_ddp_hook.py."""

import models
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import weft.torch


weft.torch.init_process_group("gloo")


def trained(session, steps=12, buckets=0.01, hooked=True, **options):
    """A model after `steps` steps of DDP: gradients by gloo, or by weft's hook."""
    model = DDP(models.mlp(), bucket_cap_mb=buckets)
    hook = weft.torch.register_ddp_hook(model, **options) if hooked else None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    models.train(model, optimizer, steps, session.rank, session.ranks)
    return model, hook


def equals_gloo(session):
    expected, _ = trained(session, hooked=False)
    for buckets in (0.01, 25):
        model, _ = trained(session, buckets=buckets)
        assert models.same_bits(expected, model)


def same_on_all_ranks(session, model):
    for parameter in model.parameters():
        other = parameter.detach().clone()
        session.broadcast(other).wait()
        assert torch.equal(parameter, other)


def codecs_train(session, *codecs):
    """With a codec ranks stay equal in bits, and the loss falls although the gradients are inexact."""
    inputs, labels = models.batch(0)
    before = torch.nn.functional.cross_entropy(models.mlp()(inputs), labels).item()
    exact, _ = trained(session, steps=30)
    for codec in codecs:
        model, _ = trained(session, steps=30, codec=codec)
        same_on_all_ranks(session, model)
        after = torch.nn.functional.cross_entropy(model.module(inputs), labels).item()
        assert after < 0.8 * before, (codec, before, after)
        assert not models.same_bits(exact, model), codec


def codec_survives_new_buckets(session):
    """A residual belongs to a parameter: one bucket and many buckets give the same bits."""
    one, first = trained(session, buckets=25, codec="topk:ratio=0.1")
    many, second = trained(session, buckets=0.01, codec="topk:ratio=0.1")
    assert models.same_bits(one, many)
    assert first.state_dict().keys() != second.state_dict().keys()  # unique names


def chosen_codecs(session):
    """A function chooses the codec of each parameter; the state names those that have one."""
    model = DDP(models.mlp())
    hook = weft.torch.register_ddp_hook(
        model, codec=lambda name, parameter: "bf16" if name.endswith("2.weight") else None, prefix="mine/"
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    models.train(model, optimizer, 2, session.rank, session.ranks)
    assert list(hook.state_dict()) == ["mine/2.weight"]
    hook.close()


def resumable(codec, path=None):
    """Model, hook and optimiser, with the state of `path` loaded if it is given."""
    state = torch.load(path) if path else None
    model = models.mlp()
    if state:
        model.load_state_dict(state["model"])
    model = DDP(model)
    hook = weft.torch.register_ddp_hook(model, codec=codec)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if state:
        optimizer.load_state_dict(state["optimizer"])
    return model, hook, optimizer, state


def checkpoint(session, path, *codecs):
    """Saves the state of each codec after three steps, and the model after three more."""
    made = [resumable(codec) for codec in codecs]
    for model, _, optimizer, _ in made:
        models.train(model, optimizer, 3, session.rank, session.ranks)
    for number, (model, hook, optimizer, _) in enumerate(made):  # all after the same step of the session
        state = {
            "model": model.module.state_dict(),
            "optimizer": optimizer.state_dict(),
            "hook": hook.state_dict(),
        }
        torch.save(state, f"{path}/{number}.{session.rank}.pt")
    for number, (model, _, optimizer, _) in enumerate(made):
        models.train(model, optimizer, 3, session.rank, session.ranks, first=3)
        torch.save(list(model.module.state_dict().values()), f"{path}/{number}.{session.rank}.end.pt")


def continued(session, path, *codecs):
    """A job that loads the state of `checkpoint` takes the same steps, in bits; without the hook's not."""
    paths = [f"{path}/{number}.{session.rank}" for number in range(len(codecs))]
    loaded = [resumable(codec, file + ".pt") for codec, file in zip(codecs, paths)]
    fresh = [resumable(codec, file + ".pt") for codec, file in zip(codecs, paths)]
    for _, hook, _, state in loaded:  # before the first step, as load_state_dict demands
        hook.load_state_dict(state["hook"])
    for made, equal in ((loaded, True), (fresh, False)):
        for (model, _, optimizer, _), file in zip(made, paths):
            models.train(model, optimizer, 3, session.rank, session.ranks, first=3)
            end = torch.load(file + ".end.pt")
            assert models.same_bits(list(model.module.state_dict().values()), end) == equal, (file, equal)


def state_and_hook_pair(session):
    """`register_comm_hook(*ddp_hook(...))` is the same hook."""
    expected, _ = trained(session)
    model = DDP(models.mlp(), bucket_cap_mb=0.01)
    model.register_comm_hook(*weft.torch.ddp_hook(model))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    models.train(model, optimizer, 12, session.rank, session.ranks)
    assert models.same_bits(expected, model)


class Branches(torch.nn.Module):
    """A layer that some ranks do not use, and a convolution in channels_last."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.conv = torch.nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
        self.one, self.two = torch.nn.Linear(8, 4), torch.nn.Linear(8, 4)

    def forward(self, images, use_two):
        hidden = self.conv(images).mean((2, 3))
        return (self.two if use_two else self.one)(hidden)


def branches(session):
    """Unused parameters and dense strides: the same bits as gloo's, gradients of no_sync included."""
    results = []
    for hooked in (False, True):
        model = DDP(Branches(), find_unused_parameters=True)
        if hooked:
            weft.torch.register_ddp_hook(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        generator = torch.Generator().manual_seed(session.rank)
        for step in range(5):
            images = torch.randn(4, 3, 6, 6, generator=generator)
            with model.no_sync():
                model(images, step % 2 == session.rank).square().sum().backward()
            model(images + 1, step % 2 == session.rank).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        results.append(model)
    assert models.same_bits(*results)


def convolution_with_codec(session):
    """A convolution in channels_last takes a codec."""
    model = DDP(Branches(), find_unused_parameters=True)
    hook = weft.torch.register_ddp_hook(model, codec="powersgd:rank=1", codec_min=100)
    for step in range(3):
        model(torch.ones(2, 3, 6, 6), step % 2 == 0).sum().backward()
    assert [name.split("/")[1] for name in hook.state_dict()] == ["conv.weight"]


class Net(torch.nn.Module):
    """The network of the other tests in a module of its own: torch.compile does not trace forward of torch's containers."""

    def __init__(self):
        super().__init__()
        self.layers = models.mlp()

    def forward(self, inputs):
        return self.layers(inputs)


def compiled(session):
    """torch.compile around the DDP model, and around a model of weft's optimizer wrapper: the results of before.

    The backend traces forward and backward pass but generates no code, which would take a compiler and its time.
    """
    try:
        torch.compile(Net())
    except RuntimeError:
        return  # PyTorch too old for this Python
    from torch._dynamo.backends.debugging import aot_eager

    expected, _ = trained(session, steps=6)
    model = DDP(Net())
    weft.torch.register_ddp_hook(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    graphs = []

    def traced(graph, inputs):
        graphs.append(graph)
        return aot_eager(graph, inputs)

    models.train(torch.compile(model, backend=traced), optimizer, 6, session.rank, session.ranks)
    for got, want in zip(model.parameters(), expected.parameters()):
        torch.testing.assert_close(got, want)
    assert graphs
    graphs.clear()
    torch._dynamo.reset()
    model = Net()
    optimizer = weft.torch.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model.named_parameters()
    )
    models.train(torch.compile(model, backend=traced), optimizer, 6, session.rank, session.ranks)
    for got, want in zip(model.parameters(), expected.parameters()):
        torch.testing.assert_close(got, want)
    assert graphs


def nan_is_skipped(session):
    """A NaN on one rank makes the coded gradients NaN on all: GradScaler skips the step."""
    if not hasattr(torch.amp, "GradScaler"):
        return  # PyTorch before 2.3
    model = DDP(models.mlp())
    weft.torch.register_ddp_hook(model, codec="topk:ratio=0.1")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    for step in range(4):
        inputs, labels = models.batch(step, session.rank, session.ranks)
        if step == 1 and session.rank == 1:
            inputs[0] = float("nan")
        before = [parameter.detach().clone() for parameter in model.parameters()]
        optimizer.zero_grad()
        scaler.scale(torch.nn.functional.cross_entropy(model(inputs), labels)).backward()
        scaler.step(optimizer)
        scaler.update()
        assert models.same_bits(before, list(model.parameters())) == (step == 1), step
    same_on_all_ranks(session, model)
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def dies_in_backward(session):
    """Rank 1 is killed inside its backward pass: rank 0's backward raises PeerLost, which names it."""
    model = DDP(models.mlp(), bucket_cap_mb=0.01)
    weft.torch.register_ddp_hook(model)
    models.die_in_backward(model, session.rank, session.ranks, weft.PeerLost, "rank 1")


def refuses(session):
    """Mistakes of the caller are sentences, and nothing is declared."""
    model = DDP(models.mlp())
    with pytest.raises(weft.InvalidArgument, match="lower codec_min"):
        weft.torch.register_ddp_hook(model, codec="bf16", codec_min=10**6)
    alone = [dist.new_group([rank]) for rank in range(session.ranks)][session.rank]
    with pytest.raises(weft.InvalidArgument, match="has 1 ranks, and the weft session has 2"):
        weft.torch.register_ddp_hook(DDP(models.mlp(), process_group=alone))
