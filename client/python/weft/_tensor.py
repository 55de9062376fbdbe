"""Declared tensors: push_pull with codec and optimiser."""

import operator
from collections.abc import Iterable

from . import _buffer
from ._abi import NULL, ffi, lib
from ._errors import InvalidArgument
from ._request import Request
from ._types import MODES, c_text, dtype_of, lookup, milliseconds


def declare(session, kind, name, shape, dtype, mode, codec, optimizer, chunk_bytes, skip_nonfinite, group=0,
            priority=0, alone=False, consistency=None, pull_dtype=None):  # fmt: skip
    """Call weft_declare and return a `kind` (Tensor). See Session.declare."""
    dims = _dims_of(name, shape)
    options = ffi.new("struct weft_tensor_options *")
    lib.weft_tensor_options_init_sized(options, ffi.sizeof("struct weft_tensor_options"))
    texts = {"name": name, "codec": codec, "optimizer": optimizer, "consistency": consistency}
    keep = {key: ffi.new("char[]", c_text(text, key)) for key, text in texts.items() if text is not None}
    for key, text in keep.items():
        setattr(options, key, text)
    options.dim_count = len(dims)
    for index, size in enumerate(dims):
        options.dims[index] = size
    options.dtype = dtype_of(dtype)
    if mode is not None:
        options.mode = lookup(MODES, mode, "mode")
    options.chunk_bytes, options.skip_nonfinite, options.group = chunk_bytes, skip_nonfinite, group
    options.priority, options.alone = priority, alone
    if pull_dtype is not None:
        options.pull_dtype = dtype_of(pull_dtype)
    out = ffi.new("struct weft_tensor **")
    with session._lock:
        session._check(lib.weft_declare(session._c, options, out))
    elems = 1
    for size in dims:
        elems *= size
    return kind(session, out[0], name, tuple(dims), elems, options.dtype)


def _dims_of(name, shape):
    """The shape, an int or ints, as a list of ints."""
    try:
        dims = [operator.index(size) for size in (shape if isinstance(shape, Iterable) else [shape])]
    except TypeError:
        dims = [0]
    if min(dims, default=1) <= 0:
        raise InvalidArgument(f"tensor {name!r}: shape {shape!r}; pass a positive int, or a sequence of them")
    if not 0 < len(dims) <= 8:
        raise InvalidArgument(f"tensor {name!r}: the shape has {len(dims)} dimensions; 1 to 8 are possible")
    return dims


class Tensor:
    """A tensor of the job (Session.declare): one push_pull of it per step."""

    __slots__ = ("_c", "_on_device", "_session", "_weights", "dtype", "elems", "name", "shape", "__weakref__")

    def __init__(self, session, pointer, name, shape, elems, dtype):
        self._session, self._c, self._weights = session, pointer, None
        self.name, self.shape, self.elems, self.dtype = name, shape, elems, dtype
        self._on_device = False  # the buffers of the last operation

    def _view(self, array, writable=False):
        buffer = _buffer.view(array, writable)
        if buffer.count != self.elems or buffer.dtype != self.dtype:
            raise InvalidArgument(
                f"tensor {self.name!r} has {self.elems} elements of {ffi.string(lib.weft_dtype_name(self.dtype)).decode()}; "
                f"the array has {buffer.count} of {ffi.string(lib.weft_dtype_name(buffer.dtype)).decode()}"
            )
        return buffer

    def init(self, weights):
        """Set the first weights: rank 0's `weights` reach the shards and every rank's array. Collective; blocks.

        Call it once, before the first step; a tensor with an optimiser requires it.
        """
        buffer = self._view(weights, True)
        self._session._check(lib.weft_tensor_init(self._c, buffer.pointer))
        self._weights = buffer  # weft_push_none writes the new weights to it
        return weights

    def push_pull(self, grad, out=None, *, on_stream=False):
        """Contribute `grad`, receive `out` (default: in place); once in a step. Return a Request.

        Without an optimiser `out` receives the weighted mean of the gradients. With one it receives the new
        weights, and must hold the weights of the last step.

        on_stream: of CUDA arrays: their stream waits for the result (weft_tensor_on_stream). Work queued behind the
        call follows the result, and no wait is needed before.
        """
        source = self._view(grad)
        target = source if out is None or out is grad else self._view(out, True)
        if target is source:
            self._view(source, True)
        request = Request(self._session, (source, target), grad if out is None else out)
        self._weights = target
        return self._submit(request, source, on_stream, lib.weft_push_pull, source.pointer, target.pointer)

    def wait(self, timeout=None):
        """Block until the last operation is done. timeout: seconds; default: the session's deadline. Raises its error."""
        self._session._check(lib.weft_tensor_wait(self._c, milliseconds(timeout)))

    def stats(self):
        """Return a dict of struct weft_tensor_stats: when the tensor was ready, transferred and waited for, in ns."""
        stats = ffi.new("struct weft_tensor_stats *")
        stats.size = ffi.sizeof("struct weft_tensor_stats")
        self._session._check(lib.weft_tensor_stats_get(self._c, stats))
        return {name: getattr(stats, name) for name, _ in ffi.typeof("struct weft_tensor_stats").fields if name != "size"}

    def push_none(self):
        """Contribute zeros, for a tensor that this rank did not use in the step. Does not block."""
        with self._session._lock:
            self._session._check(lib.weft_push_none(self._c))

    def push(self, grad, *, on_stream=False):
        """Contribute `grad` to the shards (server mode, dense). Return a Request. on_stream: as in push_pull."""
        source = self._view(grad)
        request = Request(self._session, source)
        return self._submit(request, source, on_stream, lib.weft_push, source.pointer)

    def pull(self, out, *, on_stream=False):
        """Receive the result of this rank's last push in `out` (server mode, dense). Return a Request.

        on_stream: as in push_pull.
        """
        target = self._view(out, True)
        request = Request(self._session, target, out)
        return self._submit(request, target, on_stream, lib.weft_pull, target.pointer)

    def _submit(self, request, buffer, on_stream, start, *pointers):
        session = self._session
        with session._lock:
            if buffer.memory or self._on_device:
                session._check(lib.weft_tensor_memory(self._c, buffer.memory, ffi.cast("void *", buffer.stream)))
                session._check(lib.weft_tensor_on_stream(self._c, on_stream))
                self._on_device = bool(buffer.memory)
            return session._submit(request, start, self._c, *pointers)

    def share(self, weights, root=0):
        """Copy rank `root`'s weights and optimiser arrays to all ranks (elastic jobs). Collective; blocks."""
        buffer = self._view(weights, True)
        self._session._check(lib.weft_tensor_share(self._c, buffer.pointer, root))
        self._weights = buffer
        return weights

    def choice(self):
        """Return a dict of struct weft_choice: the codec in use and what it has saved."""
        choice = ffi.new("struct weft_choice *")
        choice.size = ffi.sizeof("struct weft_choice")
        self._session._check(lib.weft_choice_get(self._c, choice))
        made = {name: getattr(choice, name) for name, _ in ffi.typeof("struct weft_choice").fields if name != "size"}
        made["codec"] = ffi.string(choice.codec).decode()
        return made

    def state(self):
        """Return the optimiser arrays and the last step's number as bytes. One rank calls, between steps; blocks."""
        return self._saved(lib.weft_state_bytes, lib.weft_state_save)

    def load_state(self, data=None):
        """Restore `state` from rank 0's bytes; other ranks may pass None. Collective, before the first step; blocks."""
        size = 0 if data is None else len(data)
        pointer = NULL if data is None else ffi.from_buffer(data)
        self._session._check(lib.weft_state_load(self._c, pointer, size))

    def residual(self):
        """Return the residual of this rank's codec as bytes: the unsent part of the gradients. Between steps; local."""
        return self._saved(lib.weft_residual_bytes, lib.weft_residual_save)

    def load_residual(self, data):
        """Restore `residual`. Between steps; local. Raises Malformed where the bytes are damaged; nothing is changed."""
        self._session._check(lib.weft_residual_load(self._c, ffi.from_buffer(data), len(data)))

    def _saved(self, size_of, save):
        size = size_of(self._c)
        data = bytearray(size)
        self._session._check(save(self._c, ffi.from_buffer(data), size))
        return bytes(data)

    def free(self):
        """Free the tensor on all ranks and shards. Collective, between steps; blocks."""
        self._session._check(lib.weft_tensor_free(self._c))
        self._c = NULL
