#!/usr/bin/env python3
"""with_compile.py - torch.compile around a model whose gradients weft averages.

    weft run -n 2 -- python examples/python/with_compile.py [--codec powersgd:rank=2] [--backend aot_eager]
    torchrun --nproc-per-node 2 examples/python/with_compile.py

The compiled model is the DistributedDataParallel one, so TorchDynamo splits the graph where DDP's buckets end, and
each bucket's gradients travel during the rest of the backward pass. weft's hook is as without torch.compile. The
model learns the labels of a random teacher; rank 0 prints its accuracy on samples that no rank has seen, and the
largest difference from the same training without torch.compile. The backend "inductor" needs a C++ compiler.
"""

import argparse

import torch
import torch._dynamo
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import weft
import weft.torch


def samples(count, seed):
    """Inputs (count, 16) and the labels of a fixed teacher with 4 classes."""
    teacher = torch.randn(16, 4, generator=torch.Generator().manual_seed(1))
    inputs = torch.randn(count, 16, generator=torch.Generator().manual_seed(seed))
    return inputs, (inputs @ teacher).argmax(1)


class Net(nn.Module):
    """A class of its own: TorchDynamo compiles its forward, also where it cannot trace that of the wrapper."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)
        )

    def forward(self, inputs):
        return self.layers(inputs)


def compiled(model, backend, graphs):
    """torch.compile with the backend of this name, which appends each graph that it compiles to `graphs`."""
    compile_graph = torch._dynamo.lookup_backend(backend)

    def counted(graph, inputs):
        graphs.append(graph)
        return compile_graph(graph, inputs)

    return torch.compile(model, backend=counted)


def train(options, graphs=None):
    """Train from the same weights on this rank's samples; return the model without its wrappers.

    graphs: a list for the graphs of torch.compile; None: eager.
    """
    torch.manual_seed(0)
    model = Net()
    replica = DistributedDataParallel(model)
    hook = weft.torch.register_ddp_hook(replica, codec=options.codec)
    step_model = replica if graphs is None else compiled(replica, options.backend, graphs)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    inputs, labels = samples(64 * options.steps, seed=2 + dist.get_rank())
    for first in range(0, len(inputs), 64):
        optimizer.zero_grad()
        outputs = step_model(inputs[first : first + 64])
        nn.functional.cross_entropy(outputs, labels[first : first + 64]).backward()
        optimizer.step()
    hook.close()
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--codec", help="codec of weft, such as powersgd:rank=2 (default: exact means)")
    parser.add_argument("--backend", default="inductor", help="of torch.compile (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=200, help="(default: %(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    session = weft.init()
    weft.torch.init_process_group()
    graphs = []
    eager, model = train(options), train(options, graphs)
    inputs, labels = samples(2000, seed=1000)
    accuracy = (model(inputs).argmax(1) == labels).float().mean().item()
    apart = max((a - b).abs().max().item() for a, b in zip(eager.parameters(), model.parameters()))
    if session.rank == 0:
        print(f"accuracy {accuracy:.3f} with {len(graphs)} graphs, difference {apart:.6f}")
    session.finalize()


main()
