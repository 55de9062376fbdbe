#!/usr/bin/env python3
"""ddp_steps.py - times steps of DistributedDataParallel with different ways to average the gradients.

    weft run -n 2 -- python tools/bench/torch/ddp_steps.py [--models mlp,gpt,layers] [--rounds 40] [--device cuda]

All ways run in the same processes, one step each in a random order, so that a change of the machine's load
reaches all of them. Rank 0 prints the median step of each way in ms, and in brackets what it adds to `none`,
whose hook does not communicate. Set OMP_NUM_THREADS=1 where each rank has one core.

Ways: none; gloo; nccl (only with --device cuda); hook, backend and codec of weft; codec=SPEC, the hook with that
codec; fp16 and powersgd, the hooks of PyTorch over nccl, or over gloo on the CPU. With --device cuda all ranks use
GPU 0, a step ends when the GPU is done, and `host` is what a way adds to the time that the calls hold the host.
"""

import argparse
import random
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
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


def gpt_large():
    """25 million parameters; the computation of a GPU, not of a core."""
    model = nn.Sequential(GPT(layers=8, width=512, heads=8, length=256), nn.Flatten(0, 1))
    return model, torch.randint(0, 256, (64, 256)), torch.randint(0, 256, (64 * 256,))


def matrix():
    """One gradient of 100 MiB, and little computation."""
    return nn.Linear(5120, 5120, bias=False), torch.randn(8, 5120), torch.randint(0, 5120, (8,))


MODELS = {"mlp": mlp, "gpt": gpt, "layers": layers, "gpt-large": gpt_large, "matrix": matrix}


def without_communication(_, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def without_communication_on_cuda(_, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    future = torch.futures.Future(devices=[bucket.buffer().device])
    future.set_result(bucket.buffer())
    return future


def wrapped(way, make, groups, arguments):
    """A DDP model that averages its gradients in this way."""
    torch.manual_seed(0)
    on_cuda = arguments.device == "cuda"
    model, inputs, labels = (part.to(arguments.device) for part in make())
    peers = groups["nccl" if on_cuda else "gloo"]
    group = {"backend": groups["weft"], "nccl": peers, "fp16": peers, "powersgd": peers}.get(way, groups["gloo"])
    model = DDP(model, process_group=group, bucket_cap_mb=arguments.bucket_mb)
    if way == "none":
        model.register_comm_hook(None, without_communication_on_cuda if on_cuda else without_communication)
    elif way == "hook":
        weft.torch.register_ddp_hook(model)
    elif way == "codec" or way.startswith("codec="):
        weft.torch.register_ddp_hook(model, codec=way.partition("=")[2] or arguments.codec)
    elif way == "fp16":
        model.register_comm_hook(group, default_hooks.fp16_compress_hook)
    elif way == "powersgd":
        state = powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=4, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return model, inputs, labels


def step(model, inputs, labels):
    """Seconds of one forward and backward pass, from a barrier on: until the calls return, until the GPU is done."""
    model.zero_grad()
    if inputs.is_cuda:
        torch.cuda.synchronize()
    dist.barrier()
    start = time.perf_counter()
    functional.cross_entropy(model(inputs), labels).backward()
    held = time.perf_counter() - start
    if inputs.is_cuda:
        torch.cuda.synchronize()
    return held, time.perf_counter() - start


def at_percentile(values, percentile):
    """The median of values for 50; a lower percentile shows steps that other processes did not disturb."""
    return sorted(values)[min(len(values) - 1, len(values) * percentile // 100)]


def measure(session, name, arms, arguments):
    """Print the percentile of the steps of each arm {way: (model, inputs, labels)} of the model `name`."""
    times, holds = {way: [] for way in arms}, {way: [] for way in arms}
    for number in range(arguments.rounds + 5):  # the first steps rebuild buckets
        order = random.Random(number).sample(list(arms), len(arms))  # equal on all ranks
        for way in order:
            held, seconds = step(*arms[way])
            if number >= 5:
                times[way].append(seconds * 1e3)
                holds[way].append(held * 1e3)
    if session.rank != 0:
        return
    chosen = {way: at_percentile(values, arguments.percentile) for way, values in times.items()}
    none = chosen.get("none", 0.0)
    if getattr(arguments, "device", "cpu") == "cuda":
        held = {way: at_percentile(values, arguments.percentile) for way, values in holds.items()}
        for way, ms in chosen.items():
            print(
                f"{name:<9} {way:<20} {ms:9.2f} ms, adds {ms - none:9.2f} ms, {(ms - none) / ms:5.1%} of the step; "
                f"host {held[way] - held.get('none', 0.0):+9.2f} ms",
                flush=True,
            )
    else:
        cells = [f"{way} {ms:7.2f} ({ms - none:+6.2f})" for way, ms in chosen.items()]
        print(f"{name:<7}" + "  ".join(cells), flush=True)


def parse_arguments(text, ways, add=lambda parser: None):
    parser = argparse.ArgumentParser(description=text.split("\n")[0])
    parser.add_argument("--models", type=lambda text: text.split(","), default=["mlp", "gpt", "layers"])
    parser.add_argument("--ways", type=lambda text: text.split(","), default=ways)
    parser.add_argument("--rounds", type=int, default=40, help="steps of each way (default: %(default)s)")
    parser.add_argument("--percentile", type=int, default=50, help="of the steps of a way (default: %(default)s)")
    add(parser)
    return parser.parse_args()


def add_options(parser):
    parser.add_argument(
        "--codec", default="powersgd:rank=4", help="codec of the way `codec` (default: %(default)s)"
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument(
        "--bucket-mb", type=float, default=25, help="bucket_cap_mb of DDP (default: %(default)s)"
    )


def main():
    arguments = parse_arguments(__doc__, ["none", "gloo", "hook", "backend", "codec"], add_options)
    torch.set_num_threads(1)
    if arguments.device == "cuda":
        torch.cuda.init()  # before the session, which cuts calls into pieces where CUDA is loaded
    with weft.init() as session:
        weft.torch.init_process_group("weft")
        groups = {"weft": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
        if arguments.device == "cuda":
            groups["nccl"] = dist.new_group(backend="nccl")
        for name in arguments.models:
            arms = {way: wrapped(way, MODELS[name], groups, arguments) for way in arguments.ways}
            measure(session, name, arms, arguments)


if __name__ == "__main__":
    main()
