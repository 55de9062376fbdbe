"""Memory that peers on the same host map, so that collectives copy from and to it directly."""

import os

from ._abi import NULL, ffi, lib
from ._errors import NoMemory


class _Block:
    """A block of weft_alloc: belongs to its session, and to the process once the session has ended."""

    __slots__ = ("pid", "pointer", "session", "__weakref__")

    def __init__(self, session, pointer):
        self.session, self.pointer, self.pid = session, pointer, os.getpid()
        session._memory.add(self)

    def disown(self):
        """Leave the memory mapped after the session."""
        lib.weft_disown(self.session._c, self.pointer)
        self.session = None

    def free(self, _):
        if self.pid == os.getpid():  # a forked child shares the block with its parent
            lib.weft_free(NULL if self.session is None else self.session._c, self.pointer)


class Memory:
    """Zeroed memory of weft_alloc, freed with the last reference to it, to `buffer` or to a view of them.

    memoryview(memory.buffer) and numpy.asarray(memory) are views without a copy. The memory outlives
    Session.finalize. A forked child shares it with the parent: do not hand it to forked data loaders.
    """

    __slots__ = ("_pointer", "address", "buffer", "nbytes", "__weakref__")

    def __init__(self, session, nbytes):
        pointer = lib.weft_alloc(session._c, nbytes)
        if pointer == NULL:
            raise NoMemory(ffi.string(lib.weft_error_text(session._c)).decode() or f"no memory for {nbytes} bytes")
        self._pointer = ffi.gc(pointer, _Block(session, pointer).free, nbytes)  # the buffer below holds it too
        self.address, self.nbytes = int(ffi.cast("uintptr_t", pointer)), nbytes
        self.buffer = ffi.buffer(self._pointer, nbytes)

    @property
    def __array_interface__(self):
        return {"shape": (self.nbytes,), "typestr": "|u1", "data": (self.address, False), "version": 3}
