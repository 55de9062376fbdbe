#!/usr/bin/env python3
"""ddp_steps.py - times steps of DistributedDataParallel with different ways to average the gradients.

    weft run -n 2 -- python tools/bench/torch/ddp_steps.py [--models mlp,gpt,layers] [--rounds 40]

All ways run in the same processes, one step each in a random order, so that a change of the machine's load
reaches all of them. Rank 0 prints the median step of each way in ms, and in brackets what it adds to `none`,
whose hook does not communicate. Set OMP_NUM_THREADS=1 where each rank has one core.
"""

import argparse
import random
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel as DDP

import weft
import weft.torch

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples/python"))
from gpt import GPT  # noqa: E402


def mlp():
    model = nn.Sequential(
        nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10)
    )
    return model, torch.randn(32, 784), torch.randint(0, 10, (32,))


def gpt():
    model = nn.Sequential(GPT(layers=4, width=256, heads=4, length=64), nn.Flatten(0, 1))
    return model, torch.randint(0, 256, (4, 64)), torch.randint(0, 256, (256,))


def layers():
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(100)))
    return model, torch.randn(32, 64), torch.randint(0, 64, (32,))


MODELS = {"mlp": mlp, "gpt": gpt, "layers": layers}


def without_communication(_, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def wrapped(way, make, groups, arguments):
    """A DDP model that averages its gradients in this way."""
    torch.manual_seed(0)
    model, inputs, labels = make()
    model = DDP(model, process_group=groups["weft" if way == "backend" else "gloo"], bucket_cap_mb=arguments.bucket_mb)
    if way == "none":
        model.register_comm_hook(None, without_communication)
    elif way == "hook":
        weft.torch.register_ddp_hook(model)
    elif way == "codec":
        weft.torch.register_ddp_hook(model, codec=arguments.codec)
    return model, inputs, labels


def step(model, inputs, labels):
    """Seconds of one forward and backward pass, from a barrier on."""
    model.zero_grad()
    dist.barrier()
    start = time.perf_counter()
    functional.cross_entropy(model(inputs), labels).backward()
    return time.perf_counter() - start


def at_percentile(values, percentile):
    """The median of values for 50; a lower percentile shows steps that other processes did not disturb."""
    return sorted(values)[min(len(values) - 1, len(values) * percentile // 100)]


def measure(session, name, arms, arguments):
    """Print the percentile of the steps of each arm {way: (model, inputs, labels)} of the model `name`."""
    times = {way: [] for way in arms}
    for number in range(arguments.rounds + 5):  # the first steps rebuild buckets
        order = random.Random(number).sample(list(arms), len(arms))  # equal on all ranks
        for way in order:
            seconds = step(*arms[way])
            if number >= 5:
                times[way].append(seconds * 1e3)
    if session.rank == 0:
        chosen = {way: at_percentile(values, arguments.percentile) for way, values in times.items()}
        none = chosen.get("none", 0.0)
        cells = [f"{way} {ms:7.2f} ({ms - none:+6.2f})" for way, ms in chosen.items()]
        print(f"{name:<7}" + "  ".join(cells), flush=True)


def parse_arguments(text, ways, add=lambda parser: None):
    parser = argparse.ArgumentParser(description=text.split("\n")[0])
    parser.add_argument("--models", type=lambda text: text.split(","), default=list(MODELS))
    parser.add_argument("--ways", type=lambda text: text.split(","), default=ways)
    parser.add_argument("--rounds", type=int, default=40, help="steps of each way (default: %(default)s)")
    parser.add_argument("--percentile", type=int, default=50, help="of the steps of a way (default: %(default)s)")
    add(parser)
    return parser.parse_args()


def add_options(parser):
    parser.add_argument(
        "--codec", default="powersgd:rank=4", help="codec of the way `codec` (default: %(default)s)"
    )
    parser.add_argument(
        "--bucket-mb", type=float, default=25, help="bucket_cap_mb of DDP (default: %(default)s)"
    )


def main():
    arguments = parse_arguments(__doc__, ["none", "gloo", "hook", "backend", "codec"], add_options)
    torch.set_num_threads(1)
    with weft.init() as session:
        weft.torch.init_process_group("weft")
        groups = {"weft": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
        for name in arguments.models:
            arms = {way: wrapped(way, MODELS[name], groups, arguments) for way in arguments.ways}
            measure(session, name, arms, arguments)


if __name__ == "__main__":
    main()
