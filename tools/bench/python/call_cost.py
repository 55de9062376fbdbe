#!/usr/bin/env python3
"""call_cost.py - what one small operation costs from Python: the C calls by cffi, a persistent request, an ordinary call.

    weft run -n 1 -- tools/bench/python/call_cost.py [--elems N] [--json]

One rank, so that no other process is part of the time. Microseconds: the 10th percentile of 300 rounds in turn, of
200 calls each. On a busy machine most rounds are interrupted, and a median measures the other processes.
"""

import argparse
import json
import statistics
import time

import numpy

import weft
from weft._abi import ffi, lib


def arms(session, elems):
    """Functions by name; each starts one all_reduce and waits for it."""
    values = numpy.zeros(elems, "float32")
    persistent = session.persistent("all_reduce", values)
    request, pointer = ffi.new("struct weft_request *"), ffi.cast("void *", values.ctypes.data)

    def by_cffi():
        lib.weft_all_reduce(session._c, pointer, pointer, elems, lib.WEFT_F32, lib.WEFT_SUM, request)
        lib.weft_wait(request, 0)

    return {
        "two C calls by cffi": by_cffi,
        "persistent.start().wait()": lambda: persistent.start().wait(),
        "session.all_reduce(array).wait()": lambda: session.all_reduce(values).wait(),
    }


def measure(function, calls=200):
    began = time.perf_counter()
    for _ in range(calls):
        function()
    return (time.perf_counter() - began) / calls * 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--elems", type=int, default=2, help="elements of f32 (default 2)")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args()
    with weft.init() as session:
        functions = arms(session, options.elems)
        rounds = {name: [] for name in functions}
        for _ in range(300):
            for name, function in functions.items():
                rounds[name].append(measure(function))
        lows = {name: statistics.quantiles(times, n=10)[0] for name, times in rounds.items()}
    if options.json:
        print(json.dumps({"elems": options.elems, "ranks": 1, "us": lows}))
        return
    base = next(iter(lows.values()))
    for name, us in lows.items():
        print(f"{name:34} {us:6.2f} us  +{us - base:5.2f}")


if __name__ == "__main__":
    main()
