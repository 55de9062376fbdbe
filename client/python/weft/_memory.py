"""Memory that peers on the same host map, so that collectives copy from and to it directly."""

import os

from ._abi import NULL, ffi, lib
from ._errors import NoMemory


class Memory:
    """Zeroed memory of weft_alloc, freed with the last reference to it or to a view of it.

    memoryview(memory.buffer) and numpy.asarray(memory) are views without a copy. The memory outlives
    Session.finalize. A forked child shares it with the parent: do not hand it to forked data loaders.
    """

    __slots__ = ("_pid", "_session", "address", "buffer", "nbytes", "__weakref__")

    def __init__(self, session, nbytes):
        pointer = lib.weft_alloc(session._c, nbytes)
        if pointer == NULL:
            raise NoMemory(ffi.string(lib.weft_error_text(session._c)).decode() or f"no memory for {nbytes} bytes")
        self._session, self._pid = session, os.getpid()
        self.address, self.nbytes = int(ffi.cast("uintptr_t", pointer)), nbytes
        self.buffer = ffi.buffer(pointer, nbytes)
        session._memory.add(self)

    @property
    def __array_interface__(self):
        return {"shape": (self.nbytes,), "typestr": "|u1", "data": (self.address, False), "version": 3}

    def _release(self):
        """Leave the memory mapped after the session: it is freed with this object."""
        lib.weft_disown(self._session._c, ffi.cast("void *", self.address))
        self._session = None

    def __del__(self):
        if getattr(self, "_pid", None) != os.getpid():
            return
        session = self._session
        lib.weft_free(session._c if session is not None else NULL, ffi.cast("void *", self.address))
