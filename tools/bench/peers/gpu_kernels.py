"""gpu_kernels.py [--count N] [--rounds N] - the operations of the CUDA kernels of weft in PyTorch, timed as by kernel_check --gpu.

    kernel_check --gpu --bench; python3 tools/bench/peers/gpu_kernels.py

Prints a line of JSON for each: its name in the table of kernel_check, milliseconds (median of the rounds) and those of a copy
in turn. Eager operators, and the fused optimisers that PyTorch has; random numbers as in kernel_check, one seed.
"""
import argparse
import json
import statistics

import torch

SIDE = 4096


def timed(way):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(2000000)  # the host queues all operations meanwhile
    begin.record()
    way()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def powersgd(grad, residual, q, out):
    """The arithmetic of one rank in the hook of PyTorch (distributed/algorithms/ddp_comm_hooks/powerSGD_hook.py)."""
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import _orthogonalize

    def run():
        bucket = grad + residual
        copy = bucket.clone()
        p = torch.matmul(bucket, q).unsqueeze(0)
        _orthogonalize(p)
        torch.matmul(bucket.t(), p[0], out=q)
        torch.matmul(p[0], q.t(), out=out)
        residual.copy_(copy - out)
    return run


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=26214400)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    torch.manual_seed(1)
    n, k = options.count, -(-options.count // 100)
    a, b, c, out = (torch.randn(n, device="cuda") for _ in range(4))
    half = {name: torch.empty(n, dtype=getattr(torch, name), device="cuda") for name in ("float16", "bfloat16", "float8_e4m3fn")}
    grad, residual, whole = (torch.randn(SIDE, SIDE, device="cuda") for _ in range(3))
    residual *= 0.01

    def topk():
        b.add_(a)
        indices = torch.topk(b.abs(), k, sorted=False).indices
        values = b[indices]
        b[indices] = 0
        return values

    def quantise():  # to int8 with a scale per 256 elements, stochastic rounding, and the residual
        x = (a + b).view(-1, 256)
        scale = x.abs().amax(1, keepdim=True) / 127
        codes = torch.floor(x / scale + torch.rand_like(x)).clamp_(-127, 127).to(torch.int8)
        torch.sub(x, codes * scale, out=out.view(-1, 256))

    def optimiser(kind, **arguments):
        weights = torch.nn.Parameter(c.clone())
        weights.grad = a
        step = kind([weights], lr=1e-6, **arguments)
        step.step()  # the first step creates the state
        return step.step

    ways = {
        "sum f32": lambda: torch.add(a, b, out=out),
        "largest magnitude": lambda: torch.linalg.vector_norm(a, float("inf")),
        "cast f32 to f16": lambda: half["float16"].copy_(a),
        "cast f16 to f32": lambda: out.copy_(half["float16"]),
        "cast f32 to bf16": lambda: half["bfloat16"].copy_(a),
        "cast f32 to e4m3": lambda: half["float8_e4m3fn"].copy_(a),
        "add residual, quantise i8": quantise,
        "top-k 1 %, select alone": lambda: torch.topk(a.abs(), k, sorted=False),
        "top-k 1 % with residual": topk,
        "sgd momentum": optimiser(torch.optim.SGD, momentum=0.9, fused=True),
        "adam": optimiser(torch.optim.Adam, fused=True),
    }
    for rank in (1, 4, 8):
        ways[f"powersgd rank {rank}"] = powersgd(grad, residual, torch.randn(SIDE, rank, device="cuda"), whole)
    torch.backends.cuda.matmul.allow_tf32 = False
    with torch.no_grad():
        for name, way in ways.items():
            times, copies = [], []
            for turn in range(options.rounds + 2):
                copies.append(timed(lambda: out.copy_(a)))
                times.append(timed(way))
            print(json.dumps({"torch": torch.__version__, "kernel": name, "ms": round(statistics.median(times[2:]), 4),
                              "copy_ms": round(statistics.median(copies[2:]), 4), "copy_bytes": 8 * n}), flush=True)


main()
