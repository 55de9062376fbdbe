"""Gradients that travel while the backward pass runs: hooks and steps."""

import threading

import torch

import weft

from ._tensors import on_gradient


class GradientExchange:
    """Declares one tensor for each parameter, and pushes each gradient when autograd has accumulated it.

    Ranks may finish gradients in different orders: the library agrees on the next tensor (docs/overlap-order.md).

    push(index, parameter) starts the exchange of a gradient. missing(index, parameter) contributes for a parameter
    without one. step_options() are keywords of Session.step_begin for a step that begins.
    """

    def __init__(self, session, named_parameters, declare, push, missing, accumulate, step_options=dict):
        self.session, self.push, self.missing, self.accumulate = session, push, missing, accumulate
        self.parameters = [(name, parameter) for name, parameter in named_parameters if parameter.requires_grad]
        names = [name for name, _ in self.parameters]
        if not names or len(set(names)) != len(names):
            raise ValueError("the optimizer needs at least one parameter, and parameters need different names")
        self.tensors = [declare(name, parameter) for name, parameter in self.parameters]
        self.step_options, self.sample_weight, self.suspended = step_options, 1.0, False
        self._lock = threading.Lock()
        self._reset()
        self._hooks = [
            on_gradient(parameter, self._hook(index)) for index, (_, parameter) in enumerate(self.parameters)
        ]

    def _reset(self):
        self.ready, self.requests, self.streams = set(), {}, {}
        self.begun, self.lost, self.skips = False, None, False
        self.passes = [0] * len(self.parameters)

    def _hook(self, index):
        def accumulated(parameter):
            if self.suspended:
                return
            with self._lock:
                self.passes[index] += 1
                if self.passes[index] < self.accumulate:
                    return
                if index in self.ready:
                    raise weft.WrongState(
                        f"parameter {self.parameters[index][0]!r} has a second gradient in one step; use accumulate=N or "
                        "no_sync() for several backward passes, and call step() after the last"
                    )
                self.ready.add(index)
                self._push_ready(index)

        return accumulated

    def _begin(self):
        if not self.begun:
            self.session.step_begin(weight=self.sample_weight, skip=self.skips, **self.step_options())
            self.begun = True

    def skip(self):
        """This rank has no gradient for the step: all ranks skip it. Raises WrongState where gradients are under way."""
        if self.begun:
            raise weft.WrongState("skip_step: gradients are under way; call it instead of the backward pass")
        self.skips = True

    def _push_ready(self, index):
        """Push a gradient. A loss is kept for finish: an exception inside the backward pass would leave the step open."""
        if self.lost:
            return
        try:
            self._begin()
            self.requests[index] = self.push(index, self.parameters[index][1])
            self._note_stream(self.parameters[index][1].grad)
        except (weft.PeerLost, weft.Shrunk, weft.Grew) as lost:
            self.lost = lost

    def _note_stream(self, gradient):
        """Autograd's threads may have another current stream than the thread that calls `finish`."""
        if gradient is not None and gradient.device.type == "cuda":
            stream = torch.cuda.current_stream(gradient.device)
            self.streams[stream] = gradient.device

    def _follow_streams(self):
        """The current streams follow those of the gradients, which follow the results."""
        for stream, device in self.streams.items():
            current = torch.cuda.current_stream(device)
            if current != stream:
                current.wait_stream(stream)

    def finish(self, count_uses=False):
        """Push what is left, wait for all gradients and end the step. Raises what Session.step_end raises.

        count_uses: return for each parameter whether any rank has a gradient of it, as a list of 0 and 1.
        """
        uses = None
        try:
            if not self.lost:
                uses = self._push_rest(count_uses)
            for request in self.requests.values():
                if request is not None:
                    request.wait()
            self._follow_streams()
        except (weft.StepSkipped, weft.PeerLost) as lost:
            self.lost = self.lost or lost  # the end of the step decides
        except (weft.Shrunk, weft.Grew) as lost:
            self.lost, self.begun = lost, False  # of the begin: no step is open
        lost, begun = self.lost, self.begun
        self._reset()
        if begun:
            self.session.step_end()
        elif lost:
            raise lost
        return uses.tolist() if count_uses else None

    def _push_rest(self, count_uses):
        self._begin()
        for index, (_, parameter) in enumerate(self.parameters):
            if index not in self.ready:
                self.requests[index] = self.missing(index, parameter)
        if not count_uses:
            return None
        # Behind the gradients: only there every rank has started the same operations.
        uses = torch.tensor([index in self.ready for index in range(len(self.parameters))], dtype=torch.uint8)
        self.requests["uses"] = self.session.all_reduce(uses, op="max")
        return uses

    def close(self):
        """Remove the hooks and free the tensors. Collective, between steps; blocks."""
        for hook in self._hooks:
            hook.remove()
        for tensor in self.tensors:
            tensor.free()
        self._hooks, self.tensors, self.parameters = [], [], []


def contiguous(tensor):
    """`tensor` if its memory is contiguous, else a contiguous copy."""
    return tensor if tensor.is_contiguous() else tensor.contiguous()
