"""torch_rank.py [DEVICE] - a rank with tensors on DEVICE, default cuda; started by tests/gpu/run.sh torch-cuda.

Compares bits with the same calls on CPU tensors: the backend, DistributedDataParallel with the hook and without,
DistributedOptimizer and Optimizer. Measures how long the calls hold the host thread; no claim about speed, because the
ranks share one GPU.
"""

import sys
import time

try:
    import torch
    import torch.distributed as dist
except ImportError as error:
    print(f"skip: no PyTorch: {error}")
    sys.exit(77)
DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cuda"
if DEVICE == "cuda" and torch.cuda.device_count() == 0:
    print("skip: PyTorch finds no CUDA device")
    sys.exit(77)

import weft
import weft.torch

COUNTS = (1, 1000, 100003, 1 << 21)


def synchronize():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def model(device, session):
    torch.manual_seed(7)
    made = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 64)).to(device)
    return torch.nn.parallel.DistributedDataParallel(made)


def rows(step, session):
    generator = torch.Generator().manual_seed(1000 * step + session.rank)
    return torch.randn(32, 64, generator=generator)


def calls(session):
    for count in COUNTS:
        values = torch.randn(count, generator=torch.Generator().manual_seed(count + session.rank))
        on_host, on_device = values.clone(), values.to(DEVICE)
        dist.all_reduce(on_host)
        dist.all_reduce(on_device)  # no wait on the host: the copy below follows in the stream
        assert torch.equal(on_device.cpu(), on_host), f"all_reduce of {count}: other bits than on the host"
        pieces = [torch.empty(count, device=DEVICE) for _ in range(session.ranks)]
        dist.all_gather(pieces, values.to(DEVICE))
        assert torch.equal(pieces[session.rank].cpu(), values), f"all_gather of {count}"
    dist.barrier()


def chain(session):
    tensor = torch.ones(1 << 20, device=DEVICE)
    synchronize()
    began, held = time.perf_counter(), 0.0
    for _ in range(20):
        at = time.perf_counter()
        dist.all_reduce(tensor, dist.ReduceOp.AVG)
        held += time.perf_counter() - at
    synchronize()
    whole = time.perf_counter() - began
    assert tensor.eq(1).all()
    if session.rank == 0:
        print(f"20 all_reduces of 4 MiB: the calls held the host for {held * 1e6:.0f} us of {whole * 1e6:.0f} us")


def gradients(session, way):
    """Gradients of 3 backward passes with `way`, against the mean that gloo computes of the same gradients."""
    trained, plain = model(DEVICE, session), model(DEVICE, session).module
    if way == "hook":
        weft.torch.register_ddp_hook(trained)
    elif way == "codec":
        weft.torch.register_ddp_hook(trained, codec="bf16")
    tolerance = {"rtol": 2e-2, "atol": 1e-4} if way == "codec" else {"rtol": 1e-5, "atol": 1e-6}
    for step in range(3):
        inputs = rows(step, session).to(DEVICE)
        trained.zero_grad()
        trained(inputs).square().mean().backward()
        plain.zero_grad()
        plain(inputs).square().mean().backward()
        for mine, local in zip(trained.module.parameters(), plain.parameters()):
            expected = local.grad.cpu()
            dist.all_reduce(expected)
            expected /= session.ranks
            torch.testing.assert_close(mine.grad.cpu(), expected, **tolerance)


def optimizers(session):
    """Both kinds on both devices; weft.torch.Optimizer is made before the session's first step."""
    made = []
    for kind in ("weft", "distributed"):
        for device in ("cpu", DEVICE):
            torch.manual_seed(3)
            parameters = [(f"p{i}", torch.nn.Parameter(torch.randn(50, 40).to(device))) for i in range(4)]
            if kind == "weft":
                optimizer = weft.torch.Optimizer(parameters, "sgd", lr=0.125)
            else:
                plain = torch.optim.SGD([parameter for _, parameter in parameters], lr=0.125)
                optimizer = weft.torch.DistributedOptimizer(plain, parameters)
            made.append((device, optimizer, [parameter for _, parameter in parameters]))
    for device, optimizer, parameters in made:
        for step in range(3):
            optimizer.zero_grad()
            factor = torch.full((50, 40), float(step + session.rank)).to(device)
            sum((parameter * factor).sum() for parameter in parameters).backward()
            optimizer.step()
    weights = [[parameter.detach().cpu() for parameter in parameters] for _, _, parameters in made]
    for first, second in ((0, 1), (2, 3)):
        for on_host, on_device in zip(weights[first], weights[second]):
            assert torch.equal(on_host, on_device), "an optimizer has other weights than on the host"
    for _, optimizer, _ in made:
        optimizer.close()


def main():
    with weft.init() as session:
        weft.torch.init_process_group()
        optimizers(session)  # weft.torch.Optimizer is made before the first step
        calls(session)
        for way in ("hook", "codec", "backend"):
            gradients(session, way)
        chain(session)
        dist.barrier()
        if session.rank == 0:
            name = torch.cuda.get_device_name(0) if DEVICE == "cuda" else DEVICE
            print(f"torch {torch.__version__}, {name}")
        print("bits as on the host")


main()
