#!/usr/bin/env python3
"""mesh_parallel.py - data x tensor parallel training on a named DeviceMesh, over the backend "weft".

    weft run -n 4 -- python examples/python/mesh_parallel.py [--tensor 2]

The ranks form a mesh of dp x tp. Along tp each layer of a transformer block is cut by columns or rows; along dp
fully_shard (FSDP2) cuts what is left and averages gradients. The net reads Fashion-MNIST as 28 rows of 28 pixels.
Rank 0 prints the accuracy on 2,000 test images.
"""

import argparse
import time

import torch
from data import batches, fashion_mnist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional

import weft
import weft.torch

WIDTH, HEADS = 64, 4


class Block(nn.Module):
    """Attention over the rows of an image and a perceptron. Along tp each rank has some of the heads."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.project = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden):
        normed = self.norm1(hidden)
        query, key, value = (part(normed).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
                             for part in (self.query, self.key, self.value))  # fmt: skip
        mixed = functional.scaled_dot_product_attention(query, key, value)
        hidden = hidden + self.project(mixed.transpose(1, 2).flatten(-2))
        return hidden + self.down(functional.gelu(self.up(self.norm2(hidden))))


class RowTransformer(nn.Module):
    """Images (n, 1, 28, 28) to logits (n, 10)."""

    def __init__(self, layers):
        super().__init__()
        self.rows, self.places = nn.Linear(28, WIDTH), nn.Parameter(0.02 * torch.randn(28, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.out = nn.Linear(WIDTH, 10)

    def forward(self, images):
        hidden = self.rows(images.squeeze(1)) + self.places
        for block in self.blocks:
            hidden = block(hidden)
        return self.out(hidden.mean(1))


def cut(model, mesh):
    """Cut the blocks along tp, then all parameters along dp."""
    plan = {**{name: ColwiseParallel() for name in ("query", "key", "value", "up")},
            **{name: RowwiseParallel() for name in ("project", "down")}}  # fmt: skip
    for block in model.blocks:
        parallelize_module(block, mesh["tp"], plan)
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])


class Share:
    """The place of this rank along dp, as `batches` needs it: ranks of one tp group take the same samples."""

    def __init__(self, mesh):
        self.rank, self.ranks = mesh["dp"].get_local_rank(), mesh["dp"].size()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tensor", type=int, default=2, help="ranks along tp (default %(default)s)")
    parser.add_argument("--layers", type=int, default=2, help="(default %(default)s)")
    parser.add_argument("--steps", type=int, default=200, help="(default %(default)s)")
    parser.add_argument("--batch", type=int, default=64, help="samples of a step over all ranks (default %(default)s)")
    parser.add_argument("--lr", type=float, default=3e-3, help="(default %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with weft.init() as session:
        weft.torch.init_process_group("weft")
        if session.ranks % options.tensor or HEADS % options.tensor:
            raise SystemExit(f"--tensor {options.tensor} does not divide {session.ranks} ranks and {HEADS} heads")
        mesh = init_device_mesh("cpu", (session.ranks // options.tensor, options.tensor), mesh_dim_names=("dp", "tp"))
        torch.manual_seed(options.seed)  # all ranks begin with the same weights
        model = RowTransformer(options.layers)
        cut(model, mesh)
        optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, foreach=False)
        images, classes = fashion_mnist("train")
        began = time.perf_counter()
        for rows in batches(len(images), options.batch, options.steps, Share(mesh), options.seed):
            optimizer.zero_grad()
            functional.cross_entropy(model(images[rows]), classes[rows]).backward()
            optimizer.step()
        seconds = time.perf_counter() - began
        images, classes = (part[:2000] for part in fashion_mnist("t10k"))
        with torch.no_grad():  # all ranks take part: parameters are gathered layer by layer
            right = sum((model(rows).argmax(1) == wanted).sum() for rows, wanted in zip(images.split(500), classes.split(500)))
        if session.rank == 0:
            print(f"{options.steps} steps on dp={mesh['dp'].size()} x tp={mesh['tp'].size()} in {seconds:.1f} s")
            print(f"accuracy {right.item() / len(classes):.4f}", flush=True)


if __name__ == "__main__":
    main()
