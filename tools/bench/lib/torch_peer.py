"""torch_peer.py DATA ELEMENTS - runs operations of PyTorch on request, for `weft bench kernels --compare torch`.

DATA is a file of float32 that the caller fills; it is mapped, so that both use the same numbers. Each line of standard
input requests one run; the answer is one line with its seconds:

    topk       torch.topk of |x|, 1 % of all elements
    powersgd   the PowerSGD hook of DistributedDataParallel on one rank: rank 4, the largest square matrix within the data and
               4096 x 4096, with its error feedback and warm start

One thread. The first line of output is "ready" and versions, or the reason why it cannot run is on standard error.
"""
import sys
import time

SIDE_MAX = 4096


class Hook:
    """DistributedDataParallel calls the hook with the bucket; only that call is timed."""

    def __init__(self, torch, data):
        import torch.distributed as dist
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
        self.hook, self.seconds = powerSGD_hook.powerSGD_hook, 0.0
        side = min(int(len(data) ** 0.5), SIDE_MAX)
        self.data = data[:side * side]
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        state = powerSGD_hook.PowerSGDState(process_group=None, matrix_approximation_rank=4, start_powerSGD_iter=2)
        layer = torch.nn.Linear(side, side, bias=False)
        self.model = torch.nn.parallel.DistributedDataParallel(layer, bucket_cap_mb=4 * side * side >> 20 or 1)
        self.model.register_comm_hook(state, self.timed)
        self.inputs = torch.ones(1, side)
        for _ in range(3):  # until it compresses
            self.run()

    def timed(self, state, bucket):
        bucket.buffer().copy_(self.data)
        begin = time.perf_counter()
        future = self.hook(state, bucket)
        future.wait()
        self.seconds = time.perf_counter() - begin
        return future

    def run(self):
        self.model(self.inputs).sum().backward()
        return self.seconds


def topk(torch, data):
    begin = time.perf_counter()
    torch.topk(data.abs(), max(1, -(-len(data) // 100)))
    return time.perf_counter() - begin


def main():
    try:
        import torch
    except ImportError as error:
        print(f"python3-torch is not installed for {sys.executable}: {error}", file=sys.stderr)
        return 1
    torch.set_num_threads(1)
    data = torch.from_file(sys.argv[1], shared=True, size=int(sys.argv[2]), dtype=torch.float32)
    with open("/proc/self/maps", encoding="utf-8") as maps:
        blas = sorted({line.split("/")[-1].strip() for line in maps if "blas" in line.split("/")[-1]})
    hook = None
    print(f"ready torch {torch.__version__}, {torch.get_num_threads()} thread, {' '.join(blas) or 'no BLAS'}", flush=True)
    for line in sys.stdin:
        if line.strip() == "topk":
            seconds = topk(torch, data)
        else:
            hook = hook or Hook(torch, data)
            seconds = hook.run()
        print(f"{seconds:.9f}", flush=True)
    sys.stdout.flush()
    import os
    os._exit(0)  # the threads of the process group would print errors at exit


if __name__ == "__main__":
    sys.exit(main())
