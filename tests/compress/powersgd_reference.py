#!/usr/bin/python3
"""powersgd_reference.py - writes powersgd_reference.h: results of PyTorch's PowerSGD hook for gradients that both sides draw identically.

Two ranks over Gloo in this process' children, error feedback and warm start on, from a first Q of ours. The hook keeps the mean's
residual and weft each worker's own; their sums are equal, and so are the results, until rounding has grown, which takes some
twenty steps. Debian's python3-torch: /usr/bin/python3 tests/compress/powersgd_reference.py > tests/compress/powersgd_reference.h
"""
import multiprocessing
import os
import sys
import tempfile

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

RANKS, STEPS, EVERY = 2, 5, 7
CASES = [(12, 9, 1), (12, 9, 2), (16, 27, 4), (2, 40, 1), (40, 2, 1), (50, 6, 2)]  # 16 x 27: a convolution of 3 x 3 over 3 channels


def pseudo(i, step, rank):
    """The same in test_powersgd.c: a number of [-1, 1) with 24 bits."""
    x = (i * 2654435761 + step * 40503 + rank * 69069 + 12345) & 0xFFFFFFFF
    for shift, factor in ((15, 2246822519), (13, 3266489917)):
        x = (x ^ x >> shift) * factor & 0xFFFFFFFF
    return ((x ^ x >> 16) >> 8) / float(1 << 23) - 1.0


class Bucket:
    """What the hook asks of DDP's bucket: one gradient."""

    def __init__(self, gradient):
        self.gradient = gradient

    def index(self):
        return 0

    def buffer(self):
        return self.gradient.view(-1)

    def gradients(self):
        return [self.gradient]

    def is_last(self):
        return True


def steps_of(rows, cols, approximation, rank):
    state = powerSGD_hook.PowerSGDState(process_group=None, matrix_approximation_rank=approximation, start_powerSGD_iter=2,
                                        min_compression_rate=0.5)
    state.iter = 2
    state.p_memory_dict[0] = torch.empty(rows * approximation)
    state.q_memory_dict[0] = torch.tensor([pseudo(j * approximation + r, 99, 99) for j in range(cols) for r in range(approximation)])
    for step in range(STEPS):
        gradient = torch.tensor([pseudo(i, step, rank) for i in range(rows * cols)]).view(rows, cols)
        yield powerSGD_hook.powerSGD_hook(state, Bucket(gradient)).wait().view(-1).clone()


def write():
    print("/* powersgd_reference.h - written by powersgd_reference.py with PyTorch %s: the mean of two ranks after each of five steps, every" % torch.__version__)
    print(" * seventh element from the fourth on, and the norm of all. */")
    print("enum { REFERENCE_RANKS = %d, REFERENCE_STEPS = %d, REFERENCE_EVERY = %d, REFERENCE_FIRST = 3 };" % (RANKS, STEPS, EVERY))
    print("static const struct { uint64_t rows, cols; uint32_t rank; } reference_cases[] = {%s};" % ", ".join("{%d, %d, %d}" % case for case in CASES))
    values, norms = [], []
    for case in CASES:
        for out in steps_of(*case, 0):
            values += out[3::EVERY].tolist()
            norms.append(float(out.norm()))
    for name, numbers in (("reference_norms", norms), ("reference_values", values)):
        print("static const float %s[] = {" % name)
        for at in range(0, len(numbers), 9):
            print("    " + ", ".join("%.9gf" % n if "." in "%.9g" % n or "e" in "%.9g" % n else "%.1ff" % n for n in numbers[at : at + 9]) + ",")
        print("};")


def main(rank, place):
    dist.init_process_group("gloo", init_method="file://" + place, rank=rank, world_size=RANKS)
    if rank == 0:
        return write()
    for case in CASES:
        for _ in steps_of(*case, rank):
            pass
    return None


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        other = multiprocessing.Process(target=main, args=(1, os.path.join(folder, "meet")))
        other.start()
        main(0, os.path.join(folder, "meet"))
        other.join()
        sys.exit(other.exitcode)
