"""gpu_all_reduce.py LIBWEFT STORE [--sizes BYTES,...] [--turns N] - all_reduce of f32 CUDA tensors through weft and through
Gloo of torch.distributed, in turn, one process a rank; all ranks share the GPU of the machine.

    weft run -n 2 -- python3 tools/bench/peers/gpu_all_reduce.py build/client/libweft.so.0 /tmp/gloo-store-$$

Rank 0 prints a line of JSON for each size: milliseconds (medians over the turns, of the slowest rank) of

    weft      until the result is on the device
    gloo      the same
    copies    n bytes in each direction between the device and pinned memory, in all ranks at once: the least time by
              the bus
    host      all_reduce of weft of as many bytes of memory from weft_alloc, without a device

PyTorch is the one that `python3` imports. STORE is the path of a new file for the bootstrap of Gloo.
"""
import argparse
import ctypes
import json
import statistics
import time

import torch
import torch.distributed as dist

WARMUP, F32, SUM, ALL_REDUCE, CUDA = 3, 1, 1, 1, 2


class Call(ctypes.Structure):
    """struct weft_call."""
    _fields_ = [("size", ctypes.c_size_t), ("kind", ctypes.c_int), ("comm", ctypes.c_void_p), ("input", ctypes.c_void_p),
                ("output", ctypes.c_void_p), ("count", ctypes.c_uint64), ("counts", ctypes.c_void_p), ("counts_out", ctypes.c_void_p),
                ("dtype", ctypes.c_int), ("op", ctypes.c_int), ("factor", ctypes.c_double), ("root", ctypes.c_uint32),
                ("unequal", ctypes.c_bool), ("preserve_input", ctypes.c_bool), ("reproducible", ctypes.c_bool),
                ("deadline_ms", ctypes.c_uint64), ("completed", ctypes.c_void_p), ("context", ctypes.c_void_p),
                ("memory", ctypes.c_int), ("stream", ctypes.c_void_p), ("weighted", ctypes.c_bool), ("weight", ctypes.c_double)]


class Weft:
    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        self.library.weft_alloc.restype = ctypes.c_void_p
        self.library.weft_error_text.restype = ctypes.c_char_p
        self.session, self.request = ctypes.c_void_p(), (ctypes.c_uint64 * 40)()
        self.must(self.library.weft_init(None, ctypes.byref(self.session)))
        self.rank, self.ranks = self.library.weft_rank(self.session), self.library.weft_ranks(self.session)

    def must(self, status):
        if status < 0:
            raise SystemExit(f"weft: {self.library.weft_error_text(self.session).decode()}")

    def all_reduce(self, address, count, memory, stream):
        call = Call(size=ctypes.sizeof(Call), kind=ALL_REDUCE, input=address, output=address, count=count, dtype=F32, op=SUM,
                    memory=memory, stream=stream)
        self.must(self.library.weft_call_start(self.session, ctypes.byref(call), self.request))
        self.must(self.library.weft_wait(self.request, ctypes.c_uint64(0)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("store")
    parser.add_argument("--sizes", default="65536,1048576,26214400,67108864")
    parser.add_argument("--turns", type=int, default=20)
    options = parser.parse_args()
    torch.cuda.init()  # before weft_init, which exchanges whether calls run in pieces
    torch.empty(1, device="cuda")
    weft = Weft(options.library)
    dist.init_process_group("gloo", store=dist.FileStore(options.store, weft.ranks), rank=weft.rank, world_size=weft.ranks)
    own, down, up = (torch.cuda.Stream() for _ in range(3))
    for size in (int(text) for text in options.sizes.split(",")):
        count = size // 4
        tensor = torch.empty(count, device="cuda")
        pinned = [torch.empty(count, pin_memory=True) for _ in range(2)]
        other = torch.empty(count, device="cuda")
        host = weft.library.weft_alloc(weft.session, ctypes.c_size_t(size))

        def by_weft():
            weft.all_reduce(tensor.data_ptr(), count, CUDA, own.cuda_stream)
            own.synchronize()

        def by_gloo():
            with torch.cuda.stream(own):
                dist.all_reduce(tensor)
            own.synchronize()

        def copies():
            with torch.cuda.stream(down):
                pinned[0].copy_(tensor, non_blocking=True)
            with torch.cuda.stream(up):
                other.copy_(pinned[1], non_blocking=True)
            down.synchronize()
            up.synchronize()

        def on_host():
            weft.all_reduce(host, count, 0, None)

        ways = {"weft": by_weft, "gloo": by_gloo, "copies": copies, "host": on_host}
        times = {name: [] for name in ways}
        for turn in range(WARMUP + options.turns):
            for name, way in ways.items():
                with torch.cuda.stream(own):
                    tensor.fill_(weft.rank + 1)
                dist.barrier()
                if name == "gloo":
                    own.synchronize()
                begin = time.perf_counter()
                way()
                seconds = torch.tensor([time.perf_counter() - begin])
                if name in ("weft", "gloo"):
                    expected = weft.ranks * (weft.ranks + 1) / 2
                    if not bool((tensor == expected).all()):
                        raise SystemExit(f"{name}: wrong sums on rank {weft.rank} at {size} bytes")
                dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
                if turn >= WARMUP:
                    times[name].append(float(seconds) * 1e3)
        if weft.rank == 0:
            row = {"bytes": size, "ranks": weft.ranks}
            row.update({name: round(statistics.median(of), 4) for name, of in times.items()})
            row["spread"] = {name: [round(q, 4) for q in statistics.quantiles(of, n=4)[::2]] for name, of in times.items()}
            print(json.dumps(row), flush=True)
        weft.library.weft_free(weft.session, ctypes.c_void_p(host))
    dist.barrier()
    weft.library.weft_finalize(weft.session)


main()
