#!/usr/bin/env python3
"""regression.py - a linear model by NumPy: push_pull with an optimiser, through shards or all-reduce.

    weft run -n 2 -- python examples/python/regression.py            # all-reduce
    weft run -n 2 -s 1 -- python examples/python/regression.py       # through a shard; the same weights
    weft run -n 3 -s 1 --min-workers 2 --restarts 1 -- python examples/python/regression.py

Each rank has samples of its own. After 200 steps the weights are within 0.01 of the true ones. If workers are lost, the
others run the step again; new ones get the weights, and then 200 steps follow.
"""

import numpy

import weft

FEATURES, SAMPLES, STEPS = 16, 256, 200


def run_step(session, tensor, weights, truth, random):
    inputs = random.standard_normal((SAMPLES, FEATURES)).astype("float32")
    errors = inputs @ (weights - truth)
    with session.step(lr=0.05):
        tensor.push_pull(inputs.T @ errors / SAMPLES, weights)


def train(session, tensor, weights, truth):
    random = numpy.random.default_rng(1 + session.rank)
    is_new, good = session.newcomer, False  # good: a step has ended well since ranks were new
    if not is_new:
        tensor.init(weights)
    last = session.step_next - 1 + STEPS
    while session.step_next <= last:
        try:
            try:
                if is_new and not good:
                    tensor.share(weights)
                run_step(session, tensor, weights, truth, random)
                good = True
            except weft.PeerLost:  # outside a step
                session.shrink()
        except (weft.Shrunk, weft.Grew) as change:
            good = good and not isinstance(change, weft.Grew)
            is_new, last = True, session.step_next - 1 + STEPS


def main():
    truth = numpy.random.default_rng(0).standard_normal(FEATURES).astype("float32")
    with weft.init() as session:
        weights = numpy.zeros(FEATURES, "float32")
        tensor = session.declare("weights", FEATURES, optimizer="sgd:momentum=0.9")
        train(session, tensor, weights, truth)
        distance = float(abs(weights - truth).max())
        if session.rank == 0:
            print(f"{STEPS} steps on {session.ranks} ranks: largest error of a weight {distance:.6f}")
        if distance > 0.01:
            raise SystemExit("the weights did not converge")


main()
