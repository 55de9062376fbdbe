#!/usr/bin/env python3
"""with_accelerate.py - a training loop of Hugging Face Accelerate whose gradients weft averages.

    weft run -n 2 -- python examples/python/with_accelerate.py [--codec powersgd:rank=2]
    torchrun --nproc-per-node 2 examples/python/with_accelerate.py

Accelerate makes the DistributedDataParallel model, and one line registers weft's hook. The model learns the labels of a
random teacher; rank 0 prints its accuracy on samples that no rank has seen.
"""

import argparse
import os

import torch
from torch import nn

import weft
import weft.torch


def samples(count, seed):
    """Inputs (count, 16) and the labels of a fixed teacher with 4 classes."""
    teacher = torch.randn(16, 4, generator=torch.Generator().manual_seed(1))
    inputs = torch.randn(count, 16, generator=torch.Generator().manual_seed(seed))
    return inputs, (inputs @ teacher).argmax(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--codec", help="codec of weft, such as powersgd:rank=2 (default: exact means)")
    parser.add_argument("--steps", type=int, default=200, help="(default: %(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    session = weft.init()
    # Accelerate recognises a job by these variables, which torchrun sets; here all ranks are on one host.
    for prefix in ("", "LOCAL_"):
        os.environ.setdefault(prefix + "RANK", str(session.rank))
        os.environ.setdefault(prefix + "WORLD_SIZE", str(session.ranks))
    weft.torch.init_process_group("weft")
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    data = torch.utils.data.TensorDataset(*samples(64 * options.steps, seed=2))
    model, optimizer, loader = accelerator.prepare(
        model, optimizer, torch.utils.data.DataLoader(data, batch_size=32)
    )
    hook = weft.torch.register_ddp_hook(model, codec=options.codec)
    for inputs, labels in loader:
        optimizer.zero_grad()
        accelerator.backward(nn.functional.cross_entropy(model(inputs), labels))
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    hook.close()
    inputs, labels = samples(2000, seed=3)
    accuracy = (accelerator.unwrap_model(model)(inputs).argmax(1) == labels).float().mean().item()
    accelerator.print(f"accuracy {accuracy:.3f} after {len(loader)} steps on {accelerator.num_processes} ranks")
    session.finalize()


main()
