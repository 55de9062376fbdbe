#!/usr/bin/env python3
"""while_computing.py - what Python code costs an all_reduce that is under way, 1 MiB by default.

    weft run -n 2 -- python tools/bench/python/while_computing.py [--elems N] [--rounds N] [--percentile P]

    idle     start, wait
    compute  start, then Python arithmetic on the same thread with a test of the request every few microseconds; each
             test runs a step of the engine
    thread   start, wait, while another thread holds the GIL as long as the interpreter lets it: the wait returns when
             it gets the GIL, up to a switch interval (5 ms) behind the operation

Times from the start of the operation to its end as Python sees it, in us; the arms take turns. Rank 0 prints the
median, or another percentile, and the ratio to idle.
"""

import argparse
import threading
import time

import numpy

import weft


class Computation(threading.Thread):
    """Python code that runs while `busy` is set."""

    def __init__(self):
        super().__init__(daemon=True)
        self.busy = threading.Event()

    def run(self):
        while True:
            self.busy.wait()
            compute(1000)


def compute(numbers):
    return sum(number * number for number in range(numbers))


def idle(session, values, _):
    session.all_reduce(values).wait()


def computing(session, values, _):
    request = session.all_reduce(values)
    while not request.done:
        compute(50)
    request.wait()


def beside_a_thread(session, values, computation):
    computation.busy.set()
    session.all_reduce(values).wait()
    computation.busy.clear()


ARMS = {"idle": idle, "compute": computing, "thread": beside_a_thread}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--elems", type=int, default=262144, help="elements of f32 (default 262144: 1 MiB)")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--percentile", type=int, default=50, help="of the rounds of an arm (default 50)")
    options = parser.parse_args()
    computation = Computation()
    computation.start()
    times = {arm: [] for arm in ARMS}
    with weft.init() as session:
        values = numpy.zeros(options.elems, "float32")
        for number in range(options.rounds + 5):
            for arm, function in ARMS.items():
                session.barrier().wait()
                began = time.perf_counter()
                function(session, values, computation)
                if number >= 5:
                    times[arm].append((time.perf_counter() - began) * 1e6)
        if session.rank == 0:
            chosen = {arm: sorted(us)[len(us) * options.percentile // 100] for arm, us in times.items()}
            cells = [f"{arm} {us:.0f} us ({us / chosen['idle']:.1f}x)" for arm, us in chosen.items()]
            print(f"all_reduce of {values.nbytes} B: " + ", ".join(cells), flush=True)


main()
