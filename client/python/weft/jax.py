"""weft for JAX: reductions inside jit by host callbacks.

    import jax, weft, weft.jax

    session = weft.init()

    @jax.jit
    def step(parameters, batch):
        loss, gradients = jax.value_and_grad(loss_of)(parameters, batch)
        gradients = weft.jax.all_reduce(gradients, op="avg")
        return jax.tree.map(lambda p, g: p - 0.1 * g, parameters, gradients), weft.jax.all_reduce(loss, op="avg")

The callbacks are ordered, so all ranks start the same operations in the same order when they run the same program.
Arrays are on the host: inputs are read without a copy, outputs are new arrays. An operation that fails raises its
weft exception inside XlaRuntimeError.
"""

import jax
import numpy
from jax.experimental import io_callback

from ._errors import InvalidArgument
from ._request import wait_all
from ._session import session as current_session


def _shapes(leaves):
    return [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]


def _reduce(leaves, op, session):
    """Start the reductions of all leaves together and return the results."""
    session = session or current_session()
    sources = [numpy.asarray(leaf, order="C") for leaf in leaves]
    results = [numpy.empty_like(source) for source in sources]
    with session.group():
        requests = [session.all_reduce(source, result, op) for source, result in zip(sources, results)]
    wait_all(requests)
    return results


def all_reduce(tree, op="sum", *, session=None):
    """Return `tree` (arrays of any shapes) reduced over all ranks; inside or outside jit.

    op: "sum", "avg", "min", "max", "prod". The derivative of "sum" and "avg" is the same operation on the
    cotangents, as for a loss that is summed over all ranks. session: default, the process's. Blocks the device's
    stream of callbacks until all ranks take part, at most the session's deadline.
    """
    leaves, structure = jax.tree.flatten(tree)
    leaves = [jax.numpy.asarray(leaf) for leaf in leaves]

    def run(values):
        return io_callback(lambda *arrays: _reduce(arrays, op, session), _shapes(values), *values, ordered=True)

    if op not in ("sum", "avg"):
        return jax.tree.unflatten(structure, run(leaves))
    reduce = jax.custom_vjp(run)
    reduce.defvjp(lambda values: (run(values), None), lambda _, cotangents: (run(cotangents),))
    return jax.tree.unflatten(structure, reduce(leaves))


def broadcast(tree, root=0, *, session=None):
    """Return rank `root`'s `tree` on all ranks, for the first parameters. Not inside jit; blocks."""
    session = session or current_session()
    leaves, structure = jax.tree.flatten(tree)
    copies = [numpy.array(leaf) for leaf in leaves]
    wait_all([session.broadcast(copy, root) for copy in copies])
    return jax.tree.unflatten(structure, [jax.numpy.asarray(copy) for copy in copies])


class PushPull:
    """Declared tensors for the leaves of a tree: the mean gradient through codecs, or through shards.

    exchange = weft.jax.PushPull(parameters, codec="powersgd:rank=4")
    gradients = exchange(gradients)       # one step of the session; inside or outside jit

    codec, mode: as in Session.declare, for every leaf. prefix begins the tensors' names, unique in the job.
    Collective, outside a step; blocks.
    """

    def __init__(self, tree, *, codec=None, mode=None, prefix=None, session=None):
        self._session = session or current_session()
        leaves, self._structure = jax.tree.flatten(tree)
        prefix = self._session._prefix("jax") if prefix is None else prefix
        self._tensors = [
            self._session.declare(f"{prefix}{index}", tuple(leaf.shape) or (1,), leaf.dtype, codec=codec, mode=mode)
            for index, leaf in enumerate(leaves)
        ]

    def _exchange(self, *leaves):
        results = [numpy.array(leaf) for leaf in leaves]
        with self._session.step():
            for tensor, result in zip(self._tensors, results):
                tensor.push_pull(result)
        return results

    def __call__(self, tree):
        """Return the mean of `tree` over all ranks. One step: call it once for each gradient, on all ranks."""
        leaves, structure = jax.tree.flatten(tree)
        if structure != self._structure:
            raise InvalidArgument("the tree differs from the one that PushPull was made with")
        return jax.tree.unflatten(structure, io_callback(self._exchange, _shapes(leaves), *leaves, ordered=True))

    def close(self):
        """Free the tensors. Collective, between steps; blocks."""
        for tensor in self._tensors:
            tensor.free()
        self._tensors = []
