"""Sessions: joining a job, collectives, tensors and steps."""

import atexit
import contextlib
import os
import threading
import weakref

from . import _buffer, _comm
from ._abi import NULL, ffi, lib
from ._errors import AlreadyExists, Closed, InvalidArgument, NotFound, PeerLost, WrongState, check, error
from ._memory import Memory
from ._outer import OuterSteps
from ._request import OPEN, PersistentRequest, Request
from ._tensor import Tensor, declare
from ._types import OPS, c_text, lookup, milliseconds, whole

_SWEEP = 1024  # open requests from which a start looks for completed ones that nothing waits for
_current = None
_view, _writable_array = _buffer.view, _buffer.writable_array

# The calls of weft.h without a struct, which cost less.
_SHORT = {
    lib.WEFT_CALL_ALL_REDUCE: lambda s, a, b, n, t, op, root, r: lib.weft_all_reduce(s, a, b, n, t, op, r),
    lib.WEFT_CALL_REDUCE_SCATTER: lambda s, a, b, n, t, op, root, r: lib.weft_reduce_scatter(s, a, b, n, t, op, r),
    lib.WEFT_CALL_ALL_GATHER: lambda s, a, b, n, t, op, root, r: lib.weft_all_gather(s, a, b, n, t, r),
    lib.WEFT_CALL_BROADCAST: lambda s, a, b, n, t, op, root, r: lib.weft_broadcast(s, b, n, t, root, r),
    lib.WEFT_CALL_REDUCE: lib.weft_reduce,
    lib.WEFT_CALL_GATHER: lambda s, a, b, n, t, op, root, r: lib.weft_gather(s, a, b, n, t, root, r),
    lib.WEFT_CALL_SCATTER: lambda s, a, b, n, t, op, root, r: lib.weft_scatter(s, a, b, n, t, root, r),
    lib.WEFT_CALL_ALL_TO_ALL: lambda s, a, b, n, t, op, root, r: lib.weft_all_to_all(s, a, b, n, t, r),
}


_ENDED = "the session has ended, by finalize() or at the end of its `with` block; make all calls before it"
_HAS_SESSION = "this process has a session, which weft.session() returns and its finalize() ends"


def _pointer(address):
    return ffi.cast("void *", address or 0) if address is None or isinstance(address, int) else address


def session():
    """Return the session of the last weft.init in this process; raise WrongState where there is none."""
    if _current is None or _current._c == NULL:
        raise WrongState("there is no session in this process; call weft.init() first")
    return _current


def init(coordinator=None, *, job=None, secret=None, rank=None, deadline=None, lanes=None, devices=None):
    """Join the job and return its Session. Blocks until all workers and shards have joined.

    Started by `weft run`, torchrun, srun or mpirun, a program passes nothing: the values come from the
    environment (docs/running-by-hand.md). coordinator: "host:port"; rank: int, default any free rank; deadline:
    seconds of every wait and operation, default 300; lanes, devices: as in struct weft_options. Raises
    DeadlineExceeded or Unreachable with a sentence that names the missing members.
    """
    global _current
    try:
        made = open_session(coordinator, job=job, secret=secret, rank=rank, deadline=deadline, lanes=lanes, devices=devices)
    except AlreadyExists as taken:
        if _current is None or _current._c == NULL:
            raise
        raise AlreadyExists(f"{taken}; {_HAS_SESSION}") from None
    _current = made
    return _current


def open_session(coordinator, *, job=None, secret=None, rank=None, deadline=None, lanes=None, devices=None):
    """The same for a session that `session` does not return."""
    options = ffi.new("struct weft_options *")
    lib.weft_options_init_sized(options, ffi.sizeof("struct weft_options"))
    texts = {"coordinator": coordinator, "job": job, "secret": secret, "lanes": lanes, "devices": devices}
    keep = {name: ffi.new("char[]", c_text(text, name)) for name, text in texts.items() if text is not None}
    for name, text in keep.items():
        setattr(options, name, text)
    if rank is not None:
        options.rank = rank
    options.deadline_ms = milliseconds(deadline)
    out = ffi.new("struct weft_session **")
    check(lib.weft_init(options, out))
    environment = os.environ.get("WEFT_DEADLINE_MS", "")
    deadline_ms = options.deadline_ms or (int(environment) if environment.isdecimal() else 300_000)
    return Session(out[0], deadline_ms)


class Session:
    """A process's membership in a job. Made by weft.init; use it as a context manager or call finalize.

    Collectives take NumPy arrays, torch tensors, DLPack objects and buffers without a copy, and return a
    Request: `session.all_reduce(gradient, op="avg").wait()`. All ranks start the same operations in the same
    order. Any thread may start operations, and any threads may wait.

    Leaving the `with` block by an exception aborts the job: every rank raises Aborted with the exception's
    text.
    """

    def __init__(self, pointer, deadline_ms):
        self._c, self._deadline_ms, self._pid = pointer, deadline_ms, os.getpid()
        self._lock = threading.RLock()  # starting calls; not held while waiting
        self._open, self._sweep_at = set(), _SWEEP
        self._memory = weakref.WeakSet()
        self._readers = weakref.WeakKeyDictionary()
        self._prefixes = {}  # kind: number of prefixes made
        self._norm = None  # "double *": the global norm of the open step, or of the last one
        atexit.register(self.finalize)

    def _check(self, status):
        if status < 0 and self._c == NULL:
            raise Closed(_ENDED)
        return check(status, self._c)

    # ---- membership ----

    @property
    def rank(self):
        """This rank, 0 .. ranks-1."""
        return lib.weft_rank(self._c)

    @property
    def ranks(self):
        """Number of workers."""
        return lib.weft_ranks(self._c)

    @property
    def shards(self):
        """Number of shards; 0: all-reduce only."""
        return lib.weft_shards(self._c)

    def finalize(self):
        """Leave the job. Blocks at most 5 s; open requests end with Closed. A second call does nothing.

        Raises Mismatch where the ranks' last operations differ; the session is closed in both cases. Arrays of
        `empty` and `alloc` stay valid. Does nothing in a forked child.
        """
        if self._c == NULL or self._pid != os.getpid():
            return
        atexit.unregister(self.finalize)
        for block in list(self._memory):
            block.disown()
        pointer, self._c = self._c, NULL
        status = lib.weft_finalize(pointer)
        self._open.clear()
        check(status)

    def abort(self, text):
        """End the job: all waits on all ranks raise Aborted with `text`. Does not block."""
        self._check(lib.weft_abort(self._c, c_text(text, "text")))

    def nccl_open(self, device):
        """From here on, all_reduces of CUDA memory of `device` use NCCL inside each host, where that is possible.

        Collective over the job, blocks. explain("all_reduce", count) has the choice and its reason.
        """
        self._check(lib.weft_nccl_open(self._c, device))

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if kind is None:
            self.finalize()
            return
        if self._c != NULL:
            lib.weft_abort(self._c, f"{kind.__name__}: {value}"[:400].encode(errors="replace"))
            with contextlib.suppress(Exception):  # the first exception is the one to report
                self.finalize()

    # ---- collectives ----

    def call(self, kind, in_address, out_address, count, dtype, *, op=0, root=0, comm=None, counts=None, counts_out=None,
             factor=None, weight=None, reproducible=False, unequal=False, memory=0, stream=0, timeout_ms=0, keep=(),
             result=None, on_stream=False):  # fmt: skip
        """Start one operation on addresses and return its Request; the collectives below are this call.

        kind, dtype, op, memory: constants of weft.h. Addresses are integers or C pointers, count is in elements, `keep` stays
        referenced until the operation has completed, and `result` is what wait returns. The fields are those of
        struct weft_call.
        """
        request = Request(self, keep, result)
        call = self._call(kind, in_address, out_address, count, dtype, op, root, comm, counts, counts_out, factor,
                          weight, reproducible, unequal, memory, stream, timeout_ms)  # fmt: skip
        request._keep = (keep, call)
        call[0].on_stream = on_stream
        return self._submit(request, lib.weft_call_start, self._c, call[0])

    def _call(self, kind, in_address, out_address, count, dtype, op, root, comm, counts, counts_out, factor, weight,
              reproducible, unequal, memory, stream, timeout_ms):  # fmt: skip
        call = ffi.new("struct weft_call *")
        call.size, call.kind = ffi.sizeof("struct weft_call"), kind
        setattr(call, "in", _pointer(in_address))
        call.out = _pointer(out_address)
        call.count, call.dtype, call.op, call.root = count, dtype, op, root
        kept = [call]
        if comm is not None:
            if not isinstance(comm, _comm.Comm):
                raise InvalidArgument(f"comm {comm!r}; pass a Comm of split() or comm_create()")
            if comm._c == NULL:
                raise WrongState("the group was freed")
            call.comm = comm._c
            kept.append(comm)
        for name, values in (("counts", counts), ("counts_out", counts_out)):
            if values is not None:
                kept.append(ffi.new("uint64_t[]", list(values)))
                setattr(call, name, kept[-1])
        if factor is not None:
            call.op, call.factor = lib.WEFT_SCALED_SUM, factor
        if weight is not None:
            call.weighted, call.weight = True, weight
        call.reproducible, call.unequal, call.deadline_ms = reproducible, unequal, timeout_ms
        if memory:
            call.memory, call.stream = memory, ffi.cast("void *", stream)
        return kept

    def _submit(self, request, start, *arguments):
        """Start `request` by a C call that takes it last. It stays referenced until it has completed."""
        with self._lock:
            if len(self._open) >= self._sweep_at:
                self._sweep()
            status = start(*arguments, request._c)
        if status < 0:
            self._check(status)
        self._open.add(request)
        return request

    def _sweep(self):
        """Drop completed requests that nothing waits for."""
        for request in list(self._open):
            status = lib.weft_test(request._c)
            if status not in OPEN:
                request._status, request._keep = status, ()
                self._open.discard(request)
        self._sweep_at = max(_SWEEP, 2 * len(self._open))

    def _start(self, kind, array, out, pieces_in=1, pieces_out=1, *, op=0, root=0, comm=None, factor=None, weight=None,
               reproducible=False, timeout=None, result=None):  # fmt: skip
        """Start a collective on arrays: `array` holds pieces_in pieces of count elements, `out` pieces_out."""
        source = None if array is None else _view(array)
        target = None if out is None else source if out is array else _view(out, True)
        if source is None and target is None:
            raise InvalidArgument("the array is None; pass an array or a tensor")
        if type(root) is not int or root < 0:
            root = whole(root, "root")
        if target is source and source.readonly:
            raise InvalidArgument(f"the result cannot be written to a read-only {type(array).__name__}")
        shown = source or target
        if target is not None and target.dtype != shown.dtype:
            raise InvalidArgument("the dtypes of the input and the output differ")
        count = shown.count // (pieces_in if source else pieces_out)
        self._lengths(source, target, count * pieces_in, count * pieces_out)
        if op:
            op = OPS[op] if type(op) is str and op in OPS else lookup(OPS, op, "op")
        in_pointer, out_pointer = source.pointer if source else NULL, target.pointer if target else NULL
        if comm is None and factor is None and weight is None and timeout is None and not reproducible and not shown.memory:
            request = Request(self, (source, target), out if result is None else result)
            return self._submit(request, _SHORT[kind], self._c, in_pointer, out_pointer, count, shown.dtype, op, root)
        return self.call(kind, in_pointer, out_pointer, count, shown.dtype, op=op, root=root, comm=comm, factor=factor,
                         weight=weight, reproducible=reproducible, memory=shown.memory, stream=shown.stream,
                         timeout_ms=milliseconds(timeout), keep=(source, target),
                         result=out if result is None else result)  # fmt: skip

    @staticmethod
    def _lengths(source, target, need_in, need_out):
        for buffer, need, name in ((source, need_in, "input"), (target, need_out, "output")):
            if buffer is not None and buffer.count != need:
                raise InvalidArgument(f"the {name} has {buffer.count} elements; the operation needs {need}")

    def _output(self, array, out):
        """The output of an operation with equal lengths: `out`, or `array` in place."""
        return array if out is None else out

    def _pieces(self, comm):
        return self.ranks if comm is None else comm.ranks

    def _is_root(self, root, comm):
        return (self.rank if comm is None else comm.rank) == root

    def all_reduce(self, array, out=None, op="sum", *, comm=None, factor=None, weight=None, reproducible=False,
                   timeout=None):  # fmt: skip
        """Start a reduction of `array` (n,) over all ranks into `out` (n,), by default in place. Return a Request.

        op: "sum", "avg", "prod", "min", "max", and for integers "and", "or", "xor". factor: sum(factor*array).
        weight: with op "avg", sum(weight*array)/sum(weight). reproducible: the same bits for every plan and
        transport. timeout: seconds, of the operation.
        """
        if out is None and comm is None and factor is None and weight is None and timeout is None and not reproducible:
            found = _writable_array(array)
            if found is not None:  # the usual call, without the general way's objects
                pointer, dtype = found
                return self._submit(Request(self, pointer, array), lib.weft_all_reduce, self._c, pointer, pointer, array.size,
                                    dtype, OPS[op] if type(op) is str and op in OPS else lookup(OPS, op, "op"))  # fmt: skip
        return self._start(lib.WEFT_CALL_ALL_REDUCE, array, self._output(array, out), op=op, comm=comm, factor=factor,
                           weight=weight, reproducible=reproducible, timeout=timeout)  # fmt: skip

    def reduce_scatter(self, array, out, op="sum", *, comm=None, reproducible=False, timeout=None):
        """Start a reduction of `array` (ranks*n,); rank r receives piece r in `out` (n,). Return a Request."""
        return self._start(lib.WEFT_CALL_REDUCE_SCATTER, array, out, self._pieces(comm), op=op, comm=comm,
                           reproducible=reproducible, timeout=timeout)  # fmt: skip

    def all_gather(self, array, out, *, comm=None, timeout=None):
        """Start a gather of every rank's `array` (n,) into `out` (ranks*n,) on all ranks. Return a Request."""
        return self._start(lib.WEFT_CALL_ALL_GATHER, array, out, 1, self._pieces(comm), comm=comm, timeout=timeout)

    def broadcast(self, array, root=0, *, comm=None, timeout=None):
        """Start a copy of the root's `array` (n,) to every rank's `array`. Return a Request."""
        target = _buffer.view(array, not self._is_root(root, comm))
        return self._start(lib.WEFT_CALL_BROADCAST, None, target, root=root, comm=comm, timeout=timeout, result=array)

    def reduce(self, array, out=None, op="sum", root=0, *, comm=None, timeout=None):
        """Start a reduction of `array` (n,) into the root's `out` (n,), by default in place. Return a Request."""
        target = self._output(array, out) if self._is_root(root, comm) else None
        return self._start(lib.WEFT_CALL_REDUCE, array, target, op=op, root=root, comm=comm, timeout=timeout)

    def gather(self, array, out=None, root=0, *, comm=None, timeout=None):
        """Start a gather of every rank's `array` (n,) into the root's `out` (ranks*n,). Return a Request."""
        target = out if self._is_root(root, comm) else None
        if target is None and self._is_root(root, comm):
            raise InvalidArgument("gather: the root needs `out`")
        return self._start(lib.WEFT_CALL_GATHER, array, target, 1, self._pieces(comm), root=root, comm=comm, timeout=timeout)

    def scatter(self, array, out, root=0, *, comm=None, timeout=None):
        """Start a scatter of the root's `array` (ranks*n,); rank r receives piece r in `out` (n,). Return a Request."""
        source = array if self._is_root(root, comm) else None
        if source is None and self._is_root(root, comm):
            raise InvalidArgument("scatter: the root needs `array`")
        return self._start(lib.WEFT_CALL_SCATTER, source, out, self._pieces(comm), 1, root=root, comm=comm, timeout=timeout)

    def all_to_all(self, array, out, *, comm=None, timeout=None):
        """Start an exchange: piece i of `array` (ranks*n,) reaches rank i, as piece `rank` of its `out`. Return a Request."""
        pieces = self._pieces(comm)
        return self._start(lib.WEFT_CALL_ALL_TO_ALL, array, out, pieces, pieces, comm=comm, timeout=timeout)

    def send(self, array, to, *, comm=None, timeout=None):
        """Start a send of `array` (n,) to rank `to`. Its n-th send matches that rank's n-th recv. Return a Request."""
        source = _buffer.view(array)
        return self.call(lib.WEFT_CALL_SEND, source.pointer, None, source.count, source.dtype, root=whole(to, "to"), comm=comm,
                         keep=source, memory=source.memory, stream=source.stream,
                         timeout_ms=milliseconds(timeout))  # fmt: skip

    def recv(self, array, source, *, comm=None, timeout=None):
        """Start a receive of `array` (n,) from rank `source`. Return a Request."""
        target = _buffer.view(array, True)
        return self.call(lib.WEFT_CALL_RECV, None, target.pointer, target.count, target.dtype, root=whole(source, "source"), comm=comm,
                         keep=target, memory=target.memory, stream=target.stream, result=array,
                         timeout_ms=milliseconds(timeout))  # fmt: skip

    def barrier(self, *, comm=None, timeout=None):
        """Start a barrier: it completes after all ranks have called it. Return a Request."""
        return self.call(lib.WEFT_CALL_BARRIER, None, None, 0, lib.WEFT_U8, comm=comm,
                         timeout_ms=milliseconds(timeout))  # fmt: skip

    def persistent(self, kind, array, out=None, op="sum", *, root=0, comm=None):
        """Return a PersistentRequest of an operation with equal lengths: "all_reduce", "broadcast", "reduce".

        The request is validated once; start() then costs about what the C call costs.
        """
        kinds = {"all_reduce": lib.WEFT_CALL_ALL_REDUCE, "broadcast": lib.WEFT_CALL_BROADCAST, "reduce": lib.WEFT_CALL_REDUCE}
        source = _buffer.view(array)
        target = _buffer.view(self._output(array, out), True)
        self._lengths(None, target, 0, source.count)
        call = self._call(lookup(kinds, kind, "kind"), source.pointer, target.pointer, source.count, source.dtype,
                          0 if kind == "broadcast" else lookup(OPS, op, "op"), root, comm, None, None, None, None, False,
                          False, source.memory, source.stream, 0)  # fmt: skip
        request = PersistentRequest(self, (), array if out is None else out)
        with self._lock:
            self._check(lib.weft_call_init(self._c, call[0], request._c))
        request._status, request._buffers = 0, (source, target, call)
        return request

    @contextlib.contextmanager
    def group(self):
        """Gather the collectives started in the `with` block and start them together at its end.

        all_reduces of up to 64 KiB with equal dtype, op and group of ranks travel as one operation. All ranks
        start the same calls in the same order. Do not wait for a request inside the block.
        """
        with self._lock:
            self._check(lib.weft_group_start(self._c))
            try:
                yield self
            finally:
                self._check(lib.weft_group_end(self._c))

    # ---- groups of ranks ----

    def split(self, colour, key=0, parent=None):
        """Partition `parent` (default: all ranks) and return the Comm of this rank's colour; None for colour < 0.

        Collective over the parent; blocks. Ranks of one colour are ordered by key, then by rank.
        """
        above = NULL if parent is None else parent._c
        return _comm.make(self, lambda out: lib.weft_split(self._c, above, colour, key, out))

    def comm_create(self, ranks, tag=0):
        """Return the Comm of `ranks`: ranks of the job in the group's order, this one among them.

        Only the members call, all with the same ranks and tag; blocks until all have called. Ranks make the groups
        that they share in the same order.
        """
        members = ffi.new("uint32_t[]", [whole(rank, "rank") for rank in ranks])
        return _comm.make(self, lambda out: lib.weft_comm_create(self._c, members, len(members), tag, out))

    # ---- memory ----

    def alloc(self, nbytes):
        """Return Memory: zeroed bytes that peers on the same host can map."""
        return Memory(self, whole(nbytes, "nbytes"))

    def empty(self, shape, dtype="f32"):
        """Return a NumPy array (zeroed) in memory that peers on the same host can map; imports numpy."""
        import numpy

        names = {"f32": "float32", "f64": "float64", "f16": "float16"}
        kind = numpy.dtype(names.get(dtype, dtype))
        if numpy.min(shape, initial=0) < 0:
            raise InvalidArgument(f"shape {shape!r}; pass an int of at least 0, or a sequence of them")
        count = int(numpy.prod(shape))
        return numpy.asarray(self.alloc(max(1, count * kind.itemsize)))[: count * kind.itemsize].view(kind).reshape(shape)

    # ---- tensors and steps ----

    def _prefix(self, kind):
        """Return a prefix of tensor names, "kind0/" and so on: equal on ranks that make the same objects in one order."""
        number = self._prefixes.get(kind, 0)
        self._prefixes[kind] = number + 1
        return f"{kind}{number}/"

    def declare(self, name, shape, dtype="f32", *, mode=None, codec=None, optimizer=None, chunk_bytes=0,
                skip_nonfinite=False, group=0, priority=0, alone=False, consistency=None,
                pull_dtype=None):  # fmt: skip
        """Make a Tensor. Collective: all ranks declare the same tensors in the same order, outside a step; blocks.

        shape: int or ints; mode: "server" or "all_reduce", default by the job; codec: "bf16", "powersgd:rank=4",
        "topk:ratio=0.01", "auto", ...; optimizer: "adamw:weight_decay=0.01", ..., default "none": push_pull returns
        the mean gradient, with "sum" the sum; group: index of the parameter group; priority: of several tensors that are ready the highest
        is reduced first, of equal ones the first needed, learned from the first steps; consistency: "ssp:4" or "asp",
        default "bsp", with an optimizer on the shards; pull_dtype: "bf16" or "f16", results of f32 that the shards
        round, half the bytes. See struct weft_tensor_options.
        """
        return declare(self, Tensor, name, shape, dtype, mode, codec, optimizer, chunk_bytes, skip_nonfinite, group,
                       priority, alone, consistency, pull_dtype)  # fmt: skip

    def outer_steps(self, weights, *, every=100, fragments=1, overlap=0, codec=None, optimizer=None, lr=0.0, saved=None):
        """Return OuterSteps: each rank trains `weights` alone, and the ranks exchange them every `every` steps.

        weights: (name, array) pairs, f32 in host memory, the same names on all ranks, such as
        ((name, p.data) for name, p in model.named_parameters()). fragments, overlap, codec (default "int8"), optimizer
        (outer, default "sgd:momentum=0.9,nesterov=1") and lr (0.7): struct weft_outer_options. saved: bytes of
        OuterSteps.state; without it rank 0's weights reach all ranks. Collective; blocks. docs/outer-steps.md.
        """
        options = ffi.new("struct weft_outer_options *")
        options.size = ffi.sizeof("struct weft_outer_options")
        texts = {"codec": codec, "optimizer": optimizer}
        keep = {key: ffi.new("char[]", c_text(text, key)) for key, text in texts.items() if text is not None}
        for key, text in keep.items():
            setattr(options, key, text)
        options.lr, options.every, options.fragments, options.overlap = lr, every, fragments, overlap
        return OuterSteps(self, weights, options, saved)

    @property
    def step_next(self):
        """The number of the next step; inside a step, of that step."""
        return lib.weft_step_next(self._c)

    def step_begin(self, lr=1.0, *, weight=1.0, number=None, group_lr=None, group_weight_decay=None, loss_scale=1.0,
                   clip_norm=0.0, skip=False, deliver_late=False):  # fmt: skip
        """Open a step and return its number; `step` is the same as a `with` block. Call step_end behind it.

        group_lr, group_weight_decay: a sequence by parameter group. loss_scale: a power of two, the scale of the
        gradients. clip_norm: limit of the global norm, which `grad_norm` has after the step; math.inf measures only.
        skip: this rank has no usable gradient, so all ranks skip the step. See struct weft_step_options.

        deliver_late: the step's end does not wait for results of tensors; Tensor.wait does, and the next step_begin
        or step_wait completes the step. Equal on all ranks.
        """
        options = ffi.new("struct weft_step_options *")
        options.size = ffi.sizeof("struct weft_step_options")
        options.step = self.step_next if number is None else number
        options.lr, options.weight, options.loss_scale, options.skip = lr, weight, loss_scale, skip
        options.deliver_late = deliver_late
        keep = []
        for field, values in (("group_lr", group_lr), ("group_weight_decay", group_weight_decay)):
            if values is not None:
                keep.append(ffi.new("float[]", list(values)))
                options.group_count = len(keep[-1])
                setattr(options, field, keep[-1])
        norm = None
        if clip_norm:
            norm = options.norm_out = ffi.new("double *")
            options.clip_norm = clip_norm
        self._check(lib.weft_step_begin_with(self._c, options))
        self._norm = norm
        return options.step

    @property
    def grad_norm(self):
        """Global norm of the mean gradients of the last step with clip_norm, before clipping; None without."""
        return None if self._norm is None else self._norm[0]

    def step_end(self):
        """End the open step: wait for all its requests. Blocks. Raises StepSkipped, Mismatch, Diverged, Shrunk, Grew."""
        self._check(lib.weft_step_end(self._c))

    def step_wait(self):
        """Complete the last step, if it was begun with deliver_late. Blocks. Raises what step_end raises."""
        self._check(lib.weft_step_wait(self._c))

    @contextlib.contextmanager
    def step(self, lr=1.0, **options):
        """Open a step for the `with` block and end it behind it; yields the step's number.

        lr: learning rate, equal on all ranks; options: those of step_begin, such as weight, the sample weight of
        this rank. The end of the block waits for
        all requests of the step and raises what step_end raises. Where a peer is lost inside the block, the end of
        the step decides which exception is raised. After any other exception the step stays open, and the session
        cannot begin another.
        """
        made = self.step_begin(lr, **options)
        try:
            yield made
        except PeerLost as lost:
            status = lib.weft_step_end(self._c)
            if status in (lib.WEFT_ERR_SHRUNK, lib.WEFT_ERR_GREW):
                raise error(status, ffi.string(lib.weft_error_text(self._c)).decode(errors="replace")) from lost
            raise
        self.step_end()

    # ---- elastic jobs ----

    def shrink(self):
        """Agree on the remaining ranks after PeerLost, outside steps; raises Shrunk or Grew where they changed."""
        self._check(lib.weft_shrink(self._c))

    @property
    def newcomer(self):
        """Whether this rank joined a running job."""
        return bool(lib.weft_newcomer(self._c))

    def join(self, timeout=None):
        """Rest until all ranks have no more data (uneven inputs); return the rank that joined last. Blocks."""
        last = ffi.new("uint32_t *")
        self._check(lib.weft_join(self._c, milliseconds(timeout), last))
        return last[0]

    # ---- plans and statistics ----

    def set_plan(self, plan):
        """Set the plan of the next operations, such as "auto" or "ring"; equal on all ranks."""
        self._check(lib.weft_set_plan(self._c, c_text(plan, "plan")))

    def explain(self, operation, count, dtype="f32"):
        """Return one line: the plan that `operation` would take now, and the estimated time of each plan."""
        from ._types import dtype_of

        text = ffi.new("char[]", 2048)
        self._check(lib.weft_explain(self._c, c_text(operation, "operation"), count, dtype_of(dtype), text, 2048))
        return ffi.string(text).decode()

    def links(self):
        """Return a list of lines: how each other process of the job is reached."""
        text = ffi.new("char[]", 1 << 16)
        self._check(lib.weft_describe_links(self._c, text, 1 << 16))
        return ffi.string(text).decode().splitlines()

    def snapshot_blob(self, data):
        """Set this rank's data (bytes-like, at most 4 GiB) for snapshots of the shards, for example its position in
        the data. A snapshot of step s has the newest data at the end of step s. Local."""
        size = memoryview(data).nbytes if data is not None else 0
        self._check(lib.weft_snapshot_blob(self._c, ffi.from_buffer(data) if size else ffi.NULL, size))

    def restored_blob(self, rank=None):
        """Return (step, data) of `rank`, default this one, in the snapshot that the job has restored; None without
        one, or if it has no part of that rank. Blocks for the coordinator."""
        size, step = ffi.new("uint64_t *"), ffi.new("uint64_t *")
        of = self.rank if rank is None else whole(rank, "rank")
        try:
            self._check(lib.weft_snapshot_restored_blob(self._c, of, ffi.NULL, size, step))
        except NotFound:
            return None
        data = ffi.new("uint8_t[]", max(size[0], 1))
        self._check(lib.weft_snapshot_restored_blob(self._c, of, data, size, step))
        return step[0], bytes(ffi.buffer(data, size[0]))

    def stats(self):
        """Return a dict of struct weft_stats: bytes, steps, and ns waited, encoded and exposed."""
        stats = ffi.new("struct weft_stats *")
        stats.size = ffi.sizeof("struct weft_stats")
        self._check(lib.weft_stats_get(self._c, stats))
        return {name: getattr(stats, name) for name, _ in ffi.typeof("struct weft_stats").fields if name != "size"}

    def dump_events(self, path):
        """Write the flight recorder to `path` for `weft inspect`; "*.perfetto.json": a Perfetto trace."""
        self._check(lib.weft_dump_events(self._c, os.fsencode(path)))
