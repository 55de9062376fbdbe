"""The backend "weft" of torch.distributed, for CPU and CUDA tensors.

Each process group is a group of ranks of the session (weft_comm), and each call of torch.distributed is one
call of weft. Tensors are sent from and received into their own memory where they are contiguous. The backend
keeps every Work until it is done: torch.distributed may drop it earlier, while the operation uses its
tensors. Calls on CUDA tensors are stream-ordered (_streams.py).

    PyTorch 2.14 and later   WeftBackend, a Backend in Python, one for the devices of a ProcessGroup
    before                   WeftProcessGroup, a ProcessGroup in Python: it serves functions of
                             torch.distributed and DDP. C++ code reaches only some of its methods
"""

import contextlib
import functools
import zlib

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend

from .._abi import lib
from .._errors import InvalidArgument, Unsupported, WeftError
from . import _pieces, _streams
from ._allocator import Allocator
from ._rendezvous import get_session
from ._work import Work

_KEPT = 64  # works that are kept before a call looks for those that have ended


def _as_list(value):
    return [value] if isinstance(value, torch.Tensor) else list(value)


def _in_stream_order(start):
    """A method that starts operations and returns their Work: on CUDA tensors it runs on a side stream."""

    @functools.wraps(start)
    def method(self, *arguments, **fields):
        device = _streams.device_of(arguments)
        if device is None:
            return start(self, *arguments, **fields)
        with _streams.side_streams.region(device, list(_streams.tensors_in(arguments))) as order:
            work = start(self, *arguments, **fields)
            work.follow(order)
        return work

    return method


class Collectives:
    """The operations of one process group; ranks and roots are those of the group."""

    supports_coalescing = False

    def __init__(self, session, comm, rank, size, timeout):
        self._session, self._comm, self._rank, self._size = session, comm, rank, size
        self._timeout = timeout
        self._works = set()
        self._allocator = Allocator(session)

    def getBackendName(self):
        return "weft"

    def name(self):
        return "weft"

    # ---- starting operations ----

    def _milliseconds(self, options):
        """The deadline of one call; 0: the session's, which is the longest."""
        timeout = getattr(options, "timeout", None)
        if timeout is None or timeout.total_seconds() <= 0:
            timeout = self._timeout
        milliseconds = int(timeout.total_seconds() * 1000)
        return milliseconds if 0 < milliseconds < self._session._deadline_ms else 0

    def _call(self, options, kind, source=None, target=None, count=None, **fields):
        """Start one operation on contiguous tensors and return its Request; count: elements of one piece."""
        shown = source if source is not None else target
        start, length, dtype, scale = _pieces.described(shown)
        for name in ("counts", "counts_out"):
            if fields.get(name) is not None:
                fields[name] = [number * scale for number in fields[name]]
        return self._session.call(
            kind,
            None if source is None else start,
            None if target is None else target.data_ptr(),
            length if count is None else count * scale,
            dtype,
            comm=self._comm,
            timeout_ms=self._milliseconds(options),
            keep=(source, target),
            **_streams.call_fields(shown),
            **fields,
        )

    def _work(self, requests, outputs, after=()):
        work = Work(requests, outputs, after)
        with self._session._lock:  # autograd's threads start operations too
            if len(self._works) >= _KEPT:
                self._works = {kept for kept in self._works if not kept.done}
            self._works.add(work)
        return work

    @staticmethod
    def _check_all(tensors):
        for tensor in tensors:
            if tensor.device.type not in ("cpu", "cuda") or tensor.device != tensors[0].device:
                raise Unsupported(
                    "the backend weft takes CPU tensors, or CUDA tensors of one device, in a call; not "
                    f"{tensor.device} with {tensors[0].device}"
                )
            if tensor.layout != torch.strided:
                raise Unsupported("the backend weft takes dense tensors; call to_dense() before")

    @contextlib.contextmanager
    def _together(self, tensors):
        """Several calls travel as one operation where weft can join them; stream-ordered calls stay apart."""
        if len(tensors) > 1 and tensors[0].device.type == "cpu":
            with self._session.group():
                yield
        else:
            yield

    # ---- collectives on one tensor ----

    @_in_stream_order
    def broadcast(self, tensors, options):
        self._check_all(tensors)
        after = []
        target = _pieces.written(tensors[0], after)
        request = self._call(options, lib.WEFT_CALL_BROADCAST, None, target, root=options.rootRank)
        return self._work([request], tensors, after)

    @_in_stream_order
    def _reduce_in_place(self, tensors, options, kind, **fields):
        self._check_all(tensors)
        after, requests = [], []
        with self._together(tensors):
            for tensor in tensors:
                reduction = _pieces.Reduction(options.reduceOp, tensor.dtype)
                place = _pieces.written(tensor, after, reduction.view)
                requests.append(
                    self._call(
                        options, kind, place, place, op=reduction.op, factor=reduction.factor, **fields
                    )
                )
        return self._work(requests, tensors, after)

    def allreduce(self, tensors, options):
        return self._reduce_in_place(tensors, options, lib.WEFT_CALL_ALL_REDUCE)

    def allreduce_coalesced(self, tensors, options):
        return self._reduce_in_place(tensors, options, lib.WEFT_CALL_ALL_REDUCE)

    def reduce(self, tensors, options):
        if options.rootRank == self._rank:
            return self._reduce_in_place(tensors, options, lib.WEFT_CALL_REDUCE, root=options.rootRank)
        return self._contribute(tensors, options)

    @_in_stream_order
    def _contribute(self, tensors, options):
        """The part of `reduce` of a rank that is not the root."""
        self._check_all(tensors)
        reduction = _pieces.Reduction(options.reduceOp, tensors[0].dtype)
        source = reduction.view(tensors[0].contiguous())
        request = self._call(
            options,
            lib.WEFT_CALL_REDUCE,
            source,
            None,
            op=reduction.op,
            factor=reduction.factor,
            root=options.rootRank,
        )
        return self._work([request], tensors)

    def barrier(self, options=None, opts=None):  # opts: the name before PyTorch 2.14
        options = opts if options is None else options
        request = self._session.call(
            lib.WEFT_CALL_BARRIER,
            None,
            None,
            0,
            lib.WEFT_U8,
            comm=self._comm,
            timeout_ms=self._milliseconds(options),
        )
        return self._work([request], [])

    # ---- gather ----

    def all_gather_single(self, output, source, options=None):
        return self.all_gather_single_coalesced([output], [source], options)

    @_in_stream_order
    def all_gather_single_coalesced(self, outputs, sources, options):
        self._check_all([*outputs, *sources])
        after, requests = [], []
        for output, source in zip(outputs, sources):
            self._check_pieces("all_gather", output, source)
        with self._together(outputs):
            for output, source in zip(outputs, sources):
                target = _pieces.written(output, after)
                requests.append(self._call(options, lib.WEFT_CALL_ALL_GATHER, source.contiguous(), target))
        return self._work(requests, outputs, after)

    def _check_pieces(self, name, whole, piece):
        if whole.numel() != piece.numel() * self._size or whole.dtype != piece.dtype:
            raise InvalidArgument(
                f"{name}: a tensor of {whole.numel()} {whole.dtype} does not hold {self._size} pieces of "
                f"{piece.numel()} {piece.dtype}"
            )

    def allgather(self, output_lists, sources, options=None):
        return self.allgather_coalesced(output_lists, sources, options)

    @_in_stream_order
    def allgather_coalesced(self, output_lists, sources, options):
        after, requests = [], []
        for outputs, source in zip(output_lists, sources):
            self._check_all([*outputs, source])
            counts = [output.numel() for output in outputs]
            if len(counts) != self._size or counts[self._rank] != source.numel():
                raise InvalidArgument(
                    f"all_gather: the list has outputs of {counts} elements; it needs {self._size}, and at "
                    f"this rank's place one of {source.numel()} elements"
                )
            target = _pieces.flat_result(outputs, after)
            unequal = counts if len(set(counts)) > 1 else None
            requests.append(
                self._call(options, lib.WEFT_CALL_ALL_GATHER, source.contiguous(), target, counts=unequal)
            )
        return self._work(requests, [output for outputs in output_lists for output in outputs], after)

    @_in_stream_order
    def gather(self, output_lists, sources, options):
        after, target, source = [], None, sources[0]
        is_root = options.rootRank == self._rank
        outputs = list(output_lists[0]) if is_root else []
        self._check_all([*outputs, source])
        if is_root:
            if [output.numel() for output in outputs] != [source.numel()] * self._size:
                raise InvalidArgument(
                    f"gather: the root needs {self._size} outputs of {source.numel()} elements"
                )
            target = _pieces.flat_result(outputs, after)
        request = self._call(
            options, lib.WEFT_CALL_GATHER, source.contiguous(), target, root=options.rootRank
        )
        return self._work([request], outputs, after)

    # ---- scatter ----

    @_in_stream_order
    def scatter(self, outputs, source_lists, options):
        after, source, output = [], None, outputs[0]
        is_root = options.rootRank == self._rank
        self._check_all(outputs)
        if is_root:
            sources = list(source_lists[0])
            if [piece.numel() for piece in sources] != [output.numel()] * self._size:
                raise InvalidArgument(
                    f"scatter: the root needs {self._size} inputs of {output.numel()} elements"
                )
            self._check_all(sources)
            source = _pieces.flat(sources)
        target = _pieces.written(output, after)
        request = self._call(
            options, lib.WEFT_CALL_SCATTER, source, target, target.numel(), root=options.rootRank
        )
        return self._work([request], outputs, after)

    @_in_stream_order
    def reduce_scatter(self, outputs, source_lists, options):
        after, output, sources = [], outputs[0], list(source_lists[0])
        counts = [source.numel() for source in sources]
        if len(counts) != self._size or counts[self._rank] != output.numel():
            raise InvalidArgument(
                f"reduce_scatter: inputs of {counts} elements do not fit an output of {output.numel()}"
            )
        self._check_all([*outputs, *sources])
        request = self._reduce_scatter(
            output, _pieces.flat(sources), options, after, counts if len(set(counts)) > 1 else None
        )
        return self._work([request], outputs, after)

    def _reduce_scatter(self, output, source, options, after, counts=None):
        reduction = _pieces.Reduction(options.reduceOp, output.dtype)
        target = _pieces.written(output, after, reduction.view)
        if counts is not None and output.is_complex():
            counts = [2 * count for count in counts]  # the view has real and imaginary parts
        return self._call(
            options,
            lib.WEFT_CALL_REDUCE_SCATTER,
            reduction.view(source.contiguous()),
            target,
            target.numel(),
            op=reduction.op,
            factor=reduction.factor,
            counts=counts,
        )

    def reduce_scatter_single(self, output, source, options):
        return self.reduce_scatter_single_coalesced([output], [source], options)

    @_in_stream_order
    def reduce_scatter_single_coalesced(self, outputs, sources, options):
        self._check_all([*outputs, *sources])
        after, requests = [], []
        for output, source in zip(outputs, sources):
            self._check_pieces("reduce_scatter", source, output)
        with self._together(outputs):
            for output, source in zip(outputs, sources):
                requests.append(self._reduce_scatter(output, source, options, after))
        return self._work(requests, outputs, after)

    # ---- all to all ----

    @_in_stream_order
    def all_to_all_single(self, output, source, output_splits, input_splits, options):
        self._check_all([output, source])
        after = []
        target = _pieces.written(output, after)
        counts, counts_out = self._rows(source, input_splits), self._rows(output, output_splits)
        if counts is None and counts_out is None:
            self._check_pieces("all_to_all", source, source.reshape(-1)[: source.numel() // self._size])
            request = self._call(
                options, lib.WEFT_CALL_ALL_TO_ALL, source.contiguous(), target, source.numel() // self._size
            )
        else:
            equal = [source.numel() // self._size] * self._size, [output.numel() // self._size] * self._size
            request = self._call(
                options,
                lib.WEFT_CALL_ALL_TO_ALL,
                source.contiguous(),
                target,
                0,
                counts=counts or equal[0],
                counts_out=counts_out or equal[1],
            )
        return self._work([request], [output], after)

    def _rows(self, tensor, splits):
        """Elements of each piece from numbers of rows; None for equal pieces."""
        if not splits:
            return None
        if len(splits) != self._size or sum(splits) != tensor.shape[0]:
            raise InvalidArgument(
                f"all_to_all: splits {list(splits)} do not cut {tensor.shape[0]} rows into {self._size} "
                "pieces"
            )
        row = tensor.numel() // max(1, tensor.shape[0])
        return [rows * row for rows in splits]

    @_in_stream_order
    def alltoall(self, outputs, sources, options):
        self._check_all([*outputs, *sources])
        if len(outputs) != self._size or len(sources) != self._size:
            raise InvalidArgument(
                f"all_to_all: {len(sources)} inputs and {len(outputs)} outputs for {self._size} ranks"
            )
        after = []
        target = _pieces.flat_result(outputs, after)
        request = self._call(
            options,
            lib.WEFT_CALL_ALL_TO_ALL,
            _pieces.flat(sources),
            target,
            0,
            counts=[source.numel() for source in sources],
            counts_out=[output.numel() for output in outputs],
        )
        return self._work([request], outputs, after)

    # ---- send and recv ----

    def _check_tag(self, tag):
        if tag:
            raise Unsupported(
                f"tag {tag}: weft matches sends and recvs of two ranks by their order; use tag 0"
            )

    @_in_stream_order
    def send(self, tensors, rank, tag=0):
        self._check_all(tensors)
        self._check_tag(tag)
        request = self._call(None, lib.WEFT_CALL_SEND, tensors[0].contiguous(), root=rank)
        return self._work([request], tensors)

    @_in_stream_order
    def recv(self, tensors, rank, tag=0):
        self._check_all(tensors)
        self._check_tag(tag)
        after = []
        request = self._call(None, lib.WEFT_CALL_RECV, None, _pieces.written(tensors[0], after), root=rank)
        return self._work([request], tensors, after)

    def recv_anysource(self, tensors, tag=0):
        raise Unsupported("recv: weft needs the source; pass src")

    # ---- memory, names of older releases, end ----

    def supports_tensor_alloc(self, device):
        return getattr(device, "type", "cpu") == "cpu"

    def allocate_tensor(self, size, *, dtype, device=None):
        """A tensor (size,) in memory that peers on the same host map: collectives copy from and to it."""
        return self._allocator.tensor(size, dtype)

    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    def set_timeout(self, timeout):
        self._timeout = timeout

    def _set_sequence_number_for_group(self):
        pass

    def _get_sequence_number_for_group(self):
        return 0

    def shutdown(self):
        """Leave the group, at destroy_process_group. The session stays open for the rest of the program."""
        if self._comm is not None:
            with contextlib.suppress(
                WeftError
            ):  # open operations or an ended session: it ends with the session
                self._comm.free()

    def abort(self):
        self._session.abort("torch.distributed aborted the process group")


class WeftBackend(Collectives, Backend):
    """One process group. torch.distributed makes it and calls it."""

    def __init__(self, session, comm, rank, size, timeout):
        Backend.__init__(self, rank, size)
        Collectives.__init__(self, session, comm, rank, size, timeout)


class WeftProcessGroup(Collectives, dist.ProcessGroup):
    """One process group where PyTorch has no backends in Python. torch.distributed calls it directly."""

    _device_types = [torch.device("cpu")]

    def __init__(self, session, comm, rank, size, timeout):
        dist.ProcessGroup.__init__(self, rank, size)
        Collectives.__init__(self, session, comm, rank, size, timeout)
        self._name = ""

    def _get_backend(self, device):
        return self

    # C++ code of PyTorch reads and writes the name with these.
    def getGroupName(self):
        return self._name

    def setGroupName(self, name):
        self._name = name


def _has_backends_in_python():
    try:
        type("Probe", (Backend,), {})(0, 1)
    except TypeError:  # the class has no constructor for Python
        return False
    return True


def make_backend(options, _=None):
    """Make the backend of a process group; called by torch.distributed on the members of the group."""
    whole = not options.global_ranks_in_group
    session = get_session(**({"rank": options.group_rank} if whole else {}))
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    if whole and (options.group_rank, options.group_size) != (session.rank, session.ranks):
        raise InvalidArgument(
            f"this process is rank {options.group_rank} of {options.group_size} for torch.distributed, and "
            f'rank {session.rank} of {session.ranks} in the weft job; init_method="weft://" takes these'
        )
    # The tag shows which groups met where ranks make groups in different orders.
    comm = None if whole else session.comm_create(ranks, zlib.crc32(options.group_id.encode()))
    arguments = (session, comm, options.group_rank, options.group_size, options.timeout)
    if _has_backends_in_python():
        return WeftBackend(*arguments)
    group = WeftProcessGroup(*arguments)
    group.setGroupName(options.group_id)
    return group


def register():
    """Register the name "weft" with torch.distributed."""
    # Without a GPU torch's flight recorder fails in a barrier of a group for CUDA. The count initialises nothing.
    devices = ["cpu", "cuda"] if torch.cuda.device_count() > 0 else ["cpu"]
    try:
        dist.Backend.register_backend("weft", make_backend, extended_api=True, devices=devices)
    except TypeError:  # PyTorch 2.0 has no argument `devices`
        dist.Backend.register_backend("weft", make_backend, extended_api=True)
