"""Stream order: a call on CUDA tensors follows the current stream, and the current stream follows the call.

    current stream ──event──► side stream: the call (on_stream) ──event──► current stream, in Work.wait

A stream-ordered call holds its stream until its result has arrived (weft_call.on_stream). On a side stream it
does not hold the trainer's kernels, nor other calls. No host thread waits for the device.
"""

import contextlib
import threading

import torch

from .._abi import lib

_STREAMS = 32  # torch has so many distinct streams of one priority
_PRIORITY = -1  # another set of streams than those that programs usually make


def device_of(arguments):
    """The device of the first CUDA tensor in nested lists of arguments; None where all are on the host."""
    return next((tensor.device for tensor in tensors_in(arguments) if tensor.device.type == "cuda"), None)


def tensors_in(arguments):
    """The tensors in nested lists of arguments."""
    for value in arguments:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(value)


def call_fields(tensor):
    """Fields of Session.call for a tensor: memory and the current stream, which waits for the result."""
    if tensor.device.type != "cuda":
        return {}
    stream = torch.cuda.current_stream(tensor.device).cuda_stream
    return {"memory": lib.WEFT_MEMORY_CUDA, "stream": stream, "on_stream": True}


class Order:
    """A place in a side stream, behind the work of one region."""

    def __init__(self, device, stream):
        self._device, self._stream, self._event = device, stream, torch.cuda.Event()

    def record(self):
        self._event.record(self._stream)

    def follow(self):
        """Later work of the current stream runs behind this place. Does not block."""
        torch.cuda.current_stream(self._device).wait_event(self._event)

    @property
    def is_reached(self):
        return self._event.query()

    def complete(self, value):
        """Return a complete future: what waits for it in a stream runs behind this place."""
        future = torch.futures.Future(devices=[self._device])
        with torch.cuda.stream(self._stream):  # set_result records events on the current streams
            future.set_result(value)
        return future


class SideStreams:
    """The side streams of each device. Any thread."""

    def __init__(self):
        self._lock, self._used = threading.Lock(), {}  # device: the Orders last recorded, oldest first

    def _take(self, device):
        """A stream without open work; if there are 32 with open work, the one that was used longest ago."""
        with self._lock:
            used = self._used.setdefault(device, [])
            index = next((index for index, order in enumerate(used) if order.is_reached), None)
            if index is None and len(used) < _STREAMS:
                return torch.cuda.Stream(device, priority=_PRIORITY)
            return used.pop(index or 0)._stream

    @contextlib.contextmanager
    def region(self, device, tensors):
        """A side stream is current in the `with` block, behind the work of the current stream; yields its Order.

        tensors: those that the block uses; the allocator does not reuse their memory before the block's work.
        """
        stream = self._take(device)
        order = Order(device, stream)
        try:
            stream.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(stream):
                yield order
        finally:
            order.record()
            for tensor in tensors:
                if tensor.device.type == "cuda":
                    tensor.record_stream(stream)
            with self._lock:
                self._used[device].append(order)


side_streams = SideStreams()
