#!/usr/bin/env python3
"""all_reduce.py - the shortest program: the mean of an array over all ranks.

    weft run -n 2 -- python examples/python/all_reduce.py
"""

import numpy

import weft

with weft.init() as session:
    gradient = numpy.full(1024, session.rank, "float32")
    session.all_reduce(gradient, op="avg").wait()
    print(f"rank {session.rank} of {session.ranks}: mean {gradient[0]}")
