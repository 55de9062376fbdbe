"""Tensors in memory of the session that peers on the host map, kept for reuse.

A new block costs its pages and a mapping in each peer. FSDP2 allocates the same few sizes in every step, so a block
whose last tensor was freed serves the next request of its size class.
"""

import threading
import weakref

import numpy
import torch

_LEAST = 4096  # bytes of the smallest class; the classes are powers of two and three quarters of them


def _class_bytes(nbytes):
    """The smallest class that holds nbytes: at most a third is unused."""
    power = max(_LEAST, 1 << (nbytes - 1).bit_length())
    return power * 3 // 4 if nbytes <= power * 3 // 4 else power


class Allocator:
    """Blocks of one session. Any thread may allocate and drop tensors."""

    def __init__(self, session):
        self._session, self._idle, self._lock = session, {}, threading.Lock()

    def tensor(self, count, dtype):
        """Return a tensor (count,) with undefined elements."""
        nbytes = count * torch.empty((), dtype=dtype).element_size()  # dtype.itemsize begins with 2.1
        kind = _class_bytes(max(1, nbytes))
        with self._lock:
            idle = self._idle.get(kind)
            memory = idle.pop() if idle else None
        if memory is None:
            memory = self._session.alloc(kind)
        view = numpy.asarray(memory)[:nbytes]
        weakref.finalize(view, self._take_back, kind, memory).atexit = False
        return torch.from_numpy(view).view(dtype)

    def _take_back(self, kind, memory):
        # No lock: the garbage collector may run this on a thread that holds it. list.append is atomic.
        self._idle.setdefault(kind, []).append(memory)
