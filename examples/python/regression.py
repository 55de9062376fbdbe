#!/usr/bin/env python3
"""regression.py - a linear model by NumPy: push_pull with an optimiser, through shards or all-reduce.

    weft run -n 2 -- python examples/python/regression.py            # all-reduce
    weft run -n 2 -s 1 -- python examples/python/regression.py       # through a shard; the same weights

Each rank has samples of its own. After 200 steps the weights are within 0.01 of the true ones.
"""

import numpy

import weft

FEATURES, SAMPLES, STEPS = 16, 256, 200


def main():
    truth = numpy.random.default_rng(0).standard_normal(FEATURES).astype("float32")
    with weft.init() as session:
        random = numpy.random.default_rng(1 + session.rank)
        weights = numpy.zeros(FEATURES, "float32")
        tensor = session.declare("weights", FEATURES, optimizer="sgd:momentum=0.9")
        tensor.init(weights)
        for _ in range(STEPS):
            inputs = random.standard_normal((SAMPLES, FEATURES)).astype("float32")
            errors = inputs @ (weights - truth)
            with session.step(lr=0.05):
                tensor.push_pull(inputs.T @ errors / SAMPLES, weights)
        distance = float(abs(weights - truth).max())
        if session.rank == 0:
            print(f"{STEPS} steps on {session.ranks} ranks: largest error of a weight {distance:.6f}")
        if distance > 0.01:
            raise SystemExit("the weights did not converge")


main()
