"""nccl_torch_rank.py RANK STORE [--backend nccl] [--device cuda] [--steps N] - a rank of two of PyTorch's DDP, without weft.

tests/gpu/run.sh nccl-torch runs it over NCCL's sockets and over NET/weft. The ranks train on other rows; each prints
the loss of each step, exactly, and a hash of its weights. STORE: a new file for the bootstrap. Exit status 77: no
PyTorch for CUDA, or no device.
"""

import argparse
import datetime
import hashlib
import os
import sys

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic products
try:
    import torch
    import torch.distributed as dist
except ImportError as error:
    print(f"skip: no PyTorch: {error}")
    sys.exit(77)
from torch import nn

RANKS = 2


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("rank", type=int)
    parser.add_argument("store")
    parser.add_argument("--backend", default="nccl")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    if options.device == "cuda" and torch.cuda.device_count() == 0:
        print("skip: PyTorch finds no CUDA device")
        sys.exit(77)
    torch.use_deterministic_algorithms(True)
    if options.device == "cuda":
        torch.cuda.set_device(0)
    dist.init_process_group(
        options.backend,
        store=dist.FileStore(options.store, RANKS),
        rank=options.rank,
        world_size=RANKS,
        timeout=datetime.timedelta(seconds=90),
    )
    torch.manual_seed(5)
    layers = (nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers).to(options.device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    rows = torch.Generator().manual_seed(100 + options.rank)
    for step in range(options.steps):
        inputs = torch.randn(64, 256, generator=rows).to(options.device)
        labels = torch.randint(10, (64,), generator=rows).to(options.device)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item().hex()}", flush=True)
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().numpy().tobytes())
    print(f"weights {digest.hexdigest()}", flush=True)
    dist.destroy_process_group()


main()
