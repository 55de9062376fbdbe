"""Models and data of the tests; the same seed gives the same weights and samples on every rank."""

import os
import signal

import torch
from torch import nn


TEACHER = torch.randn(20, 5, generator=torch.Generator().manual_seed(99))


def mlp(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5))


def batch(step, rank=0, ranks=1, samples=16):
    """The rank's share of the step's samples: inputs (samples/ranks, 20) and labels (samples/ranks,)."""
    generator = torch.Generator().manual_seed(1000 + step)
    inputs = torch.randn(samples, 20, generator=generator)
    labels = (inputs @ TEACHER).argmax(1)
    share = samples // ranks
    return inputs[rank * share : (rank + 1) * share], labels[rank * share : (rank + 1) * share]


def train(model, optimizer, steps, rank=0, ranks=1, first=0, clip=None):
    """`steps` steps of cross entropy; returns the last loss. clip: the largest norm of the gradients."""
    for step in range(first, first + steps):
        inputs, labels = batch(step, rank, ranks)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return loss.item()


def same_bits(first, second):
    """Whether two modules or lists of tensors have equal bits."""
    first, second = ([*m.parameters()] if isinstance(m, nn.Module) else m for m in (first, second))
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def die_in_backward(model, rank, ranks, kind, *words):
    """Rank 1 is killed inside its third backward pass; rank 0's raises `kind` with these words. model: DDP of mlp."""
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), 2, rank, ranks)
    if rank == 1:
        model.module[2].weight.register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
    inputs, labels = batch(2)
    loss = nn.functional.cross_entropy(model(inputs), labels)
    try:
        loss.backward()
    except kind as lost:
        assert all(word in str(lost) for word in words), lost
        print("named:", lost)
    else:
        raise AssertionError("the backward pass ended")
