#!/usr/bin/env python3
"""Operations of Gloo through torch.distributed (Debian: python3-torch), for comparison with `weft bench --json`.

  gloo_operations.py -n 2 all_reduce 8:1000 1048576:100

f32 sums; sizes are those of weft bench. An operation that Gloo lacks (reduce_scatter) prints nothing. The time is the mean
over the ranks of the mean time of one operation.
"""
import argparse
import json
import os
import socket
import sys
import time
import traceback

LIMIT_S = 1.0


def operation(name, dist, whole, out, rank, ranks):
    """A function that calls the operation once; None: Gloo lacks it."""
    pieces, places = list(whole.chunk(ranks)), list(out.chunk(ranks))
    mine = pieces[rank % len(pieces)].clone()  # fewer where the operation has none and is shorter than ranks
    after, before = (rank + 1) % ranks, (rank - 1) % ranks

    def sendrecv():
        sent = dist.isend(whole, after)
        dist.recv(out, before)
        sent.wait()

    return {
        "all_reduce": lambda: dist.all_reduce(whole),
        "broadcast": lambda: dist.broadcast(whole, 0),
        "reduce": lambda: dist.reduce(whole, 0),
        "all_gather": lambda: dist.all_gather(places, mine),
        "gather": lambda: dist.gather(mine, places if rank == 0 else None),
        "scatter": lambda: dist.scatter(mine, pieces if rank == 0 else None),
        "all_to_all": lambda: dist.all_to_all_single(out, whole),
        "barrier": dist.barrier,
        "sendrecv": sendrecv,
    }.get(name)


def timed(dist, torch, run, iters, ranks):
    total = 0.0
    dist.barrier()
    for _ in range(iters):
        began = time.perf_counter()
        run()
        total += time.perf_counter() - began
    mean = torch.tensor([total / iters], dtype=torch.float64)
    dist.all_reduce(mean)
    return mean.item() / ranks


def work(rank, arguments, port):
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=arguments.n)
    pieces = arguments.operation in ("all_gather", "gather", "scatter", "all_to_all", "reduce_scatter")
    for size in arguments.sizes:
        bytes_, iters = (int(word) for word in size.split(":"))
        count = max(1, bytes_ // 4 // arguments.n) * arguments.n if pieces else bytes_ // 4
        run = operation(arguments.operation, dist, torch.zeros(count), torch.zeros(count), rank, arguments.n)
        if run is None:
            return
        first = timed(dist, torch, run, 3, arguments.n)
        iters = min(iters, int(LIMIT_S / first) + 3)
        seconds = timed(dist, torch, run, iters, arguments.n)
        if rank == 0:
            print(json.dumps({"op": arguments.operation, "ranks": arguments.n, "bytes": bytes_, "time_us": round(1e6 * seconds, 3)}), flush=True)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=2)
    parser.add_argument("operation")
    parser.add_argument("sizes", nargs="+", metavar="BYTES:ITERS")
    arguments = parser.parse_args()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = []
    for rank in range(arguments.n):
        child = os.fork()  # before torch is imported, because it starts threads
        if child == 0:
            status = 1
            try:
                work(rank, arguments, port)
                status = 0
            except Exception:  # os._exit prints nothing
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(status)
        children.append(child)
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in children))


if __name__ == "__main__":
    main()
