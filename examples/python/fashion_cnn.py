#!/usr/bin/env python3
"""fashion_cnn.py - a convolutional net on Fashion-MNIST, its gradients averaged by weft in one of three ways.

    weft run -n 2 -- python examples/python/fashion_cnn.py --way hook [--codec powersgd:rank=2]
    weft run -n 2 -- python examples/python/fashion_cnn.py --way optimizer
    weft run -n 2 -s 2 -- python examples/python/fashion_cnn.py --way library

hook: DistributedDataParallel with weft's hook; optimizer: a torch optimizer on mean gradients; library: weft's own
AdamW, on the shards if the job has some. Rank 0 prints the accuracy on the 10,000 test images.
"""

import argparse
import time

import torch
from data import batches, fashion_mnist
from torch import nn
from torch.nn import functional

import weft
import weft.torch


class ConvNet(nn.Module):
    """Images (n, 1, 28, 28) to logits (n, 10)."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 16, 5, stride=2, padding=2)
        self.second = nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.hidden, self.out = nn.Linear(32 * 7 * 7, 128), nn.Linear(128, 10)

    def forward(self, images):
        hidden = functional.relu(self.second(functional.relu(self.first(images))))
        return self.out(functional.relu(self.hidden(hidden.flatten(1))))


def learner(session, model, options):
    """Return (the model to call, its optimizer) for the chosen way."""
    if options.way == "library":
        rule = "adamw:weight_decay=0.01"
        return model, weft.torch.Optimizer(model.named_parameters(), rule, options.lr, codec=options.codec)
    inner = torch.optim.AdamW(model.parameters(), lr=options.lr)
    if options.way == "optimizer":
        return model, weft.torch.DistributedOptimizer(inner, model.named_parameters(), codec=options.codec)
    weft.torch.init_process_group("weft")
    wrapped = nn.parallel.DistributedDataParallel(model)
    weft.torch.register_ddp_hook(wrapped, codec=options.codec)
    return wrapped, inner


def accuracy(model, images, classes):
    model.eval()
    with torch.no_grad():
        right = sum((model(rows).argmax(1) == wanted).sum() for rows, wanted in zip(images.split(1000), classes.split(1000)))
    return right.item() / len(classes)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--way", choices=("hook", "optimizer", "library"), default="hook")
    parser.add_argument("--codec", help='such as "powersgd:rank=2" or "bf16"; default: dense')
    parser.add_argument("--steps", type=int, default=400, help="(default %(default)s)")
    parser.add_argument("--batch", type=int, default=128, help="samples of a step over all ranks (default %(default)s)")
    parser.add_argument("--lr", type=float, default=2e-3, help="(default %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with weft.init() as session:
        images, classes = fashion_mnist("train")
        torch.manual_seed(options.seed)
        model = ConvNet()
        called, optimizer = learner(session, model, options)
        began = time.perf_counter()
        for rows in batches(len(images), options.batch, options.steps, session, options.seed):
            optimizer.zero_grad()
            functional.cross_entropy(called(images[rows]), classes[rows]).backward()
            optimizer.step()
        seconds = time.perf_counter() - began
        if session.rank == 0:
            print(f"{options.steps} steps on {session.ranks} ranks in {seconds:.1f} s")
            print(f"accuracy {accuracy(model, *fashion_mnist('t10k')):.4f}", flush=True)
        session.barrier().wait()


if __name__ == "__main__":
    main()
