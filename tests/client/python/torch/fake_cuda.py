"""CUDA tensors without a GPU: torch tensors over the runtime of tests/lib/fake_cuda, and the streams of torch.cuda.

A tensor has a device address, which the host cannot read; its elements are in the shadow of the runtime. Operations
that write run when their stream reaches them, after a random delay, so a missing order causes wrong values. Import
this module before weft.torch.
"""

import contextlib
import ctypes
import os
import threading
import time

import torch
import torch.distributed

_lib = ctypes.CDLL(os.environ["WEFT_CUDA_RUNTIME"], mode=ctypes.RTLD_GLOBAL)
_lib.fake_cuda_shadow.restype = ctypes.c_void_p
_lib.fake_cuda_shadow.argtypes = [ctypes.c_void_p]
_KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_lib.fake_cuda_launch.argtypes = [ctypes.c_void_p, _KERNEL, ctypes.c_void_p]
_lib.cudaStreamWaitEvent.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint]
_lib.cudaEventRecord.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
_lib.cudaEventQuery.argtypes = [ctypes.c_void_p]
_lib.fake_cuda_setup.argtypes = [ctypes.c_uint64, ctypes.c_uint, ctypes.c_int]
_lib.fake_cuda_setup(1 + int(os.environ.get("WEFT_RANK", 0)), 300, 1)

DEVICE = torch.device("cuda", 0)
_blocks = []  # (shadow, bytes, device address), never freed
_kernels = []  # keeps the callbacks alive
recorded = []  # (device address, stream) of record_stream
_thread = threading.local()


def _check(answer):
    assert answer == 0, f"the fake runtime answered {answer}"


class Event:
    def __init__(self, **_):
        self._handle = ctypes.c_void_p()
        _check(_lib.cudaEventCreateWithFlags(ctypes.byref(self._handle), 2))

    def record(self, stream=None):
        _check(_lib.cudaEventRecord(self._handle, (stream or current_stream()).cuda_stream))

    def query(self):
        answer = _lib.cudaEventQuery(self._handle)
        assert answer in (0, 600), f"the fake runtime answered {answer}"
        return answer == 0


class Stream:
    def __init__(self, device=None, priority=0):
        handle = ctypes.c_void_p()
        _check(_lib.cudaStreamCreateWithFlags(ctypes.byref(handle), 1))
        self.cuda_stream = handle.value

    def wait_event(self, event):
        _check(_lib.cudaStreamWaitEvent(self.cuda_stream, event._handle, 0))

    def wait_stream(self, stream):
        event = Event()
        event.record(stream)
        self.wait_event(event)


_first = Stream()


def current_stream(device=None):
    return getattr(_thread, "stream", _first)


@contextlib.contextmanager
def stream(chosen):
    before, _thread.stream = current_stream(), chosen
    try:
        yield
    finally:
        _thread.stream = before


def queue(function):
    """`function` runs when the current stream reaches it."""
    kernel = _KERNEL(lambda _: function())
    _kernels.append(kernel)
    _check(_lib.fake_cuda_launch(current_stream().cuda_stream, kernel, None))


class Future:
    """As torch.futures.Future with devices, which a build of torch for the CPU refuses."""

    def __init__(self, *, devices):
        assert devices == [DEVICE], devices
        self._event = Event()

    def set_result(self, value):
        self._value = value
        self._event.record()

    def wait(self):
        current_stream().wait_event(self._event)
        return self._value


def _plain(value):
    if isinstance(value, (list, tuple)):
        return type(value)(_plain(item) for item in value)
    return value.as_subclass(torch.Tensor) if isinstance(value, CudaTensor) else value


def _made_by(function, shape, dtype, arguments):
    """A new tensor with the result of function(*arguments), in stream order."""
    made = empty(shape, dtype=dtype)
    arguments = _plain(arguments)
    target = _plain(made)
    queue(lambda: target.copy_(function(*arguments)))
    return made


class CudaTensor(torch.Tensor):
    """Metadata and views at once; what reads or writes elements in stream order."""

    _QUEUED = ("copy_", "add_", "fill_", "mul_", "zero_")

    @property
    def device(self):
        return DEVICE

    @property
    def is_cuda(self):
        return True

    def data_ptr(self):
        host = _plain(self).data_ptr()
        for shadow, nbytes, address in _blocks:
            if shadow <= host < shadow + nbytes:
                return address + host - shadow
        raise AssertionError("a tensor outside the device's memory: an operation of the test is missing here")

    def record_stream(self, stream):
        recorded.append((self.data_ptr(), stream))

    @classmethod
    def __torch_function__(cls, func, types, arguments=(), options=None):
        name = getattr(func, "__name__", "")
        if name in cls._QUEUED:
            plain = _plain(arguments)
            queue(lambda: func(*plain))
            return arguments[0]
        if name == "cat":
            pieces = arguments[0]
            return _made_by(lambda *all: torch.cat(all), (sum(piece.numel() for piece in pieces),), pieces[0].dtype, pieces)
        if name == "new_empty":
            return empty(arguments[1], dtype=arguments[0].dtype)
        if name == "contiguous" and not arguments[0].is_contiguous():
            return _made_by(lambda tensor: tensor, arguments[0].shape, arguments[0].dtype, arguments[:1])
        if name == "to" and isinstance(arguments[1], torch.dtype):
            return _made_by(lambda tensor: tensor.to(arguments[1]), arguments[0].shape, arguments[1], arguments[:1])
        if name == "zeros_like":
            return empty(arguments[0].shape, dtype=arguments[0].dtype).zero_()
        if name == "cpu":
            return read(arguments[0])
        return super().__torch_function__(func, types, arguments, options or {})


def empty(shape, dtype=torch.float32):
    """A tensor with undefined elements."""
    count = torch.Size([shape] if isinstance(shape, int) else shape).numel()
    nbytes = max(1, count) * dtype.itemsize
    address = ctypes.c_void_p()
    _check(_lib.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(nbytes)))
    shadow = _lib.fake_cuda_shadow(address)
    _blocks.append((shadow, nbytes, address.value))
    memory = (ctypes.c_byte * nbytes).from_address(shadow)
    return torch.frombuffer(memory, dtype=dtype)[:count].reshape(shape).as_subclass(CudaTensor)


def tensor(values):
    """A tensor that the current stream fills with `values`, a tensor on the host."""
    return empty(values.shape, dtype=values.dtype).copy_(values)


def until(condition):
    """Poll; false only by a failure."""
    for _ in range(20000):
        if condition():
            return True
        time.sleep(0.001)
    return False


def read(tensor):
    """The elements, on the host, behind the work of the current stream."""
    source, event = _plain(tensor), Event()
    copy = torch.empty(source.shape, dtype=source.dtype)
    queue(lambda: copy.copy_(source))
    event.record()
    assert until(event.query), "the stream does not reach the reader"
    return copy


# torch.distributed runs its functions on subclasses with __torch_function__ off.
torch.distributed.distributed_c10d.has_torch_function = lambda _: False
torch.cuda.Stream, torch.cuda.Event = Stream, Event
torch.cuda.get_device_capability = lambda device=None: (9, 0)
torch.cuda.stream, torch.cuda.current_stream = stream, current_stream
