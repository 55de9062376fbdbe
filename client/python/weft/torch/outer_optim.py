"""A torch optimizer that trains on each rank alone, and whose weights the ranks exchange every few steps."""

import contextlib

import weft

from ._tensors import bytes_to_tensor, tensor_to_bytes


class OuterOptimizer:
    """A torch optimizer with outer steps: DistributedOptimizer(..., outer={"every": 100}).

    step() takes a step of the torch optimizer on this rank's own gradients, and exchanges the weights when it is time.
    No gradient is sent. outer: the keywords of Session.outer_steps but `saved`. Parameters are f32 in host memory;
    rank 0's are copied to all ranks at the start.

    `skipped` is True after a step whose exchange met a weight that is not finite: on all ranks the weights of the
    fragment are those of the last exchange. In an elastic job step() raises Shrunk (repeat nothing, go on) or Grew (call
    share()). sync() makes the weights equal on all ranks: before an evaluation and at the end.

    Other attributes are those of the torch optimizer: parameter groups, schedulers, state.
    """

    def __init__(self, optimizer, named_parameters, outer, *, session=None):
        if "saved" in outer:
            raise weft.InvalidArgument("outer: `saved` is set by load_state_dict; pass the other keywords of outer_steps")
        self._session, self._optimizer, self._options = session or weft.session(), optimizer, dict(outer)
        self._named = list(named_parameters)
        for name, parameter in self._named:
            if not parameter.data.is_contiguous():
                raise weft.Unsupported(f"parameter {name!r} is not contiguous; outer steps exchange contiguous weights in place")
        self.skipped = False
        self._outer = self._open(None)

    def _open(self, saved):
        return self._session.outer_steps([(name, parameter.data) for name, parameter in self._named], saved=saved, **self._options)

    def __getattr__(self, name):
        return getattr(self.__dict__["_optimizer"], name)

    @contextlib.contextmanager
    def no_sync(self):
        """Has no effect: a backward pass exchanges nothing."""
        yield

    def step(self, closure=None):
        """Take a step of the torch optimizer, and exchange the weights that are due."""
        result = self._optimizer.step(closure)
        self.skipped = False
        try:
            self._outer.step()
        except weft.StepSkipped:
            self.skipped = True
        return result

    def zero_grad(self, set_to_none=True):
        """Clear the gradients."""
        self._optimizer.zero_grad(set_to_none)

    def sync(self):
        """Exchange all weights now, so that they are equal on all ranks. Collective; blocks."""
        self._outer.sync()

    def share(self):
        """Copy rank 0's state of the outer steps to all ranks. Required after Grew; collective, blocks."""
        self._outer.share()

    def close(self):
        """Free the state of the outer steps; the weights stay. Collective; blocks."""
        self._outer.free()

    def state_dict(self):
        """The torch optimizer's state, and under "weft_outer" that of the outer steps. Every rank saves its own.

        Ends an exchange that is open: all ranks call it after the same step.
        """
        self._outer.wait()
        state = self._optimizer.state_dict()
        state["weft_outer"] = bytes_to_tensor(self._outer.state())
        return state

    def load_state_dict(self, state):
        """Restore state_dict, with the model's weights of the same time already loaded. Collective; blocks."""
        state = dict(state)
        saved = tensor_to_bytes(state.pop("weft_outer"))
        self._optimizer.load_state_dict(state)
        self._outer.free()
        self._outer = self._open(saved)
