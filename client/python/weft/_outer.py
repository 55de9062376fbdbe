"""Outer steps: local training, and rare exchanges of how far the weights have moved (DiLoCo)."""

from . import _buffer
from ._abi import NULL, ffi, lib
from ._errors import InvalidArgument, Unsupported


class OuterSteps:
    """Weights that each rank trains alone and that the ranks average every few steps (Session.outer_steps).

    Call step() behind each step of the inner optimizer. Between the calls the trainer may read and write the
    weights. All ranks call equally often.
    """

    def __init__(self, session, weights, options, saved):
        self._session, self._buffers = session, []
        out = ffi.new("struct weft_outer **")
        with session._lock:
            session._check(lib.weft_outer_create(session._c, options, out))
        self._c = out[0]
        try:
            for name, array in weights:
                self._add(name, array)
            if session.newcomer:
                self.share()
            else:
                pointer = NULL if saved is None else ffi.from_buffer(saved)
                session._check(lib.weft_outer_begin(self._c, pointer, 0 if saved is None else len(saved)))
        except BaseException:
            lib.weft_outer_free(self._c)
            self._c = NULL
            raise

    def _add(self, name, array):
        buffer = _buffer.view(array, True)
        if buffer.memory != _buffer.HOST or buffer.dtype != lib.WEFT_F32:
            raise Unsupported(f"outer steps of {name!r}: the weights must be f32 in host memory")
        shape = tuple(getattr(array, "shape", ())) or (buffer.count,)
        if len(shape) > 8:
            raise InvalidArgument(f"outer steps of {name!r}: the shape has {len(shape)} dimensions; 1 to 8 are possible")
        self._buffers.append(buffer)  # libweft reads and writes the weights until free()
        self._session._check(
            lib.weft_outer_add(self._c, name.encode(), ffi.cast("float *", buffer.pointer), len(shape), ffi.new("uint64_t[]", shape))
        )

    def step(self):
        """Count one inner step, and exchange the fragments that are due. Blocks for an exchange, unless it overlaps.

        Raises StepSkipped on all ranks where a weight is not finite: the fragment's weights are then those of the last
        exchange. Elastic jobs: Shrunk (go on), Grew (call share()).
        """
        self._session._check(lib.weft_outer_step(self._c))

    def wait(self):
        """End the open exchange before its overlap is over. All ranks call it after the same inner step; blocks."""
        self._session._check(lib.weft_outer_wait(self._c))

    def sync(self):
        """Exchange all weights now, so that they are equal on all ranks: for evaluation and at the end. Blocks."""
        self._session._check(lib.weft_outer_sync(self._c))

    def share(self):
        """Copy rank 0's anchors, outer optimizer and counters to all ranks. Required after Grew; blocks."""
        self._session._check(lib.weft_outer_share(self._c))

    def state(self):
        """Return anchors, outer optimizer, counters and this rank's residual as bytes: `saved` of Session.outer_steps.

        Each rank saves its own, beside its weights and its inner optimizer. Local; no exchange may be open (wait()).
        """
        data = bytearray(lib.weft_outer_bytes(self._c))
        self._session._check(lib.weft_outer_save(self._c, ffi.from_buffer(data), len(data)))
        return bytes(data)

    def free(self):
        """Free the anchors and tensors; the weights stay. Collective; blocks."""
        pointer, self._c = self._c, NULL
        self._session._check(lib.weft_outer_free(pointer))
