"""Memory of NumPy arrays, torch tensors, DLPack objects and buffers, without a copy."""

import ctypes

import _cffi_backend

from ._abi import ffi, lib
from ._errors import InvalidArgument, Unsupported
from ._types import BYTES, DTYPES, dtype_of

_cast, _from = ffi.cast, ffi.from_buffer
# ffi.from_buffer without its checks of arguments in Python
_from_writable, _BYTES = _cffi_backend.from_buffer, ffi.typeof("char[]")
HOST, CUDA = lib.WEFT_MEMORY_HOST, lib.WEFT_MEMORY_CUDA


class Buffer:
    """Pointer, number of elements and dtype of a contiguous array. `owner` keeps the memory alive."""

    __slots__ = ("count", "dtype", "memory", "owner", "pointer", "readonly", "stream")

    def __init__(self, pointer, count, dtype, owner, readonly=False, memory=HOST, stream=0):
        if isinstance(pointer, int):
            pointer = _cast("void *", pointer)
        self.pointer, self.count, self.dtype, self.owner = pointer, count, dtype, owner
        self.readonly, self.memory, self.stream = readonly, memory, stream

    @property
    def nbytes(self):
        return self.count * BYTES[self.dtype]


_FORMATS = {
    "f": "f32", "d": "f64", "e": "f16", "b": "i8", "B": "u8", "c": "u8", "?": "u8", "i": "i32", "I": "u32",
    "q": "i64", "Q": "u64",
    "l": "i64" if ctypes.sizeof(ctypes.c_long) == 8 else "i32",
    "L": "u64" if ctypes.sizeof(ctypes.c_long) == 8 else "u32",
}  # fmt: skip


def _elements(shape):
    count = 1
    for size in shape:
        count *= size
    return count


_dtypes = {}  # the constant of each dtype object that was seen


def _from_array_interface(array):
    dtype = array.dtype
    known = _dtypes.get(dtype)
    if known is not None:
        try:
            return Buffer(_from(array), array.size, known, array, not array.flags.writeable)
        except (BufferError, ValueError, AttributeError):
            pass  # a dtype or layout without the buffer protocol: the general way has the sentence
    buffer = _from_interface(array, dtype)
    _dtypes[dtype] = buffer.dtype
    return buffer


def writable_array(array):
    """Return (pointer, dtype) of a writable NumPy array whose dtype was seen before; None: `view` has more."""
    try:
        known = _dtypes.get(array.dtype)
        return None if known is None else (_from_writable(_BYTES, array, True), known)
    except (AttributeError, BufferError, TypeError, ValueError):
        return None


def _from_interface(array, dtype):
    interface = array.__array_interface__
    if interface.get("strides") is not None:
        raise InvalidArgument("the array is not C-contiguous; pass numpy.ascontiguousarray(array)")
    address, readonly = interface["data"]
    if dtype.byteorder == ">":
        raise InvalidArgument("the array is big-endian; convert it with array.astype(array.dtype.newbyteorder('='))")
    return Buffer(address, _elements(interface["shape"]), dtype_of(dtype), array, readonly)


_CUDA_DTYPES = {"f": "float", "i": "int", "u": "uint", "b": "bool"}


def _from_cuda_interface(array):
    """CUDA Array Interface, versions 2 and 3: Numba, CuPy, ctypes objects."""
    interface = array.__cuda_array_interface__
    shape, typestr = interface["shape"], interface["typestr"]
    if typestr[0] == ">" or typestr[1] not in _CUDA_DTYPES:
        raise Unsupported(f"a CUDA array of type {typestr!r}")
    size = int(typestr[2:])
    if interface.get("strides") is not None:
        expected = size
        for length, stride in zip(reversed(shape), reversed(interface["strides"])):
            if length != 1 and stride != expected:
                raise InvalidArgument("the CUDA array is not C-contiguous")
            expected *= length
    address, readonly = interface["data"]
    dtype = dtype_of("bool" if typestr[1] == "b" else f"{_CUDA_DTYPES[typestr[1]]}{8 * size}")
    stream = interface.get("stream") or 0
    # 1 is the legacy default stream, which weft names 0
    return Buffer(address, _elements(shape), dtype, array, readonly, CUDA, 0 if stream == 1 else stream)


def _from_torch(tensor):
    if not tensor.is_contiguous():
        raise InvalidArgument("the tensor is not contiguous; pass tensor.contiguous()")
    kind = tensor.device.type
    if kind not in ("cpu", "cuda"):
        raise Unsupported(f"a tensor on device {kind!r}; weft takes cpu and cuda tensors")
    buffer = Buffer(tensor.data_ptr(), tensor.numel(), dtype_of(tensor.dtype), tensor)
    if kind == "cuda":
        import torch  # loaded already: the tensor is torch's

        buffer.memory, buffer.stream = CUDA, torch.cuda.current_stream(tensor.device).cuda_stream
    return buffer


class _DLTensor(ctypes.Structure):
    """struct DLTensor of dlpack.h, version 0."""

    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


_DL_CODES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 6: "uint"}
_DL_CPU, _DL_CUDA, _DL_CUDA_HOST = 1, 2, 3
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def _from_dlpack(array):
    capsule = array.__dlpack__()
    tensor = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    if tensor.device_type not in (_DL_CPU, _DL_CUDA, _DL_CUDA_HOST):
        raise Unsupported(f"a DLPack tensor on device type {tensor.device_type}; weft takes host and CUDA memory")
    if tensor.code not in _DL_CODES or tensor.lanes != 1:
        raise Unsupported(f"a DLPack element of type code {tensor.code} and {tensor.lanes} lanes")
    shape = [tensor.shape[i] for i in range(tensor.ndim)]
    if tensor.strides:
        expected = 1
        for i in reversed(range(tensor.ndim)):
            if shape[i] != 1 and tensor.strides[i] != expected:
                raise InvalidArgument("the DLPack tensor is not contiguous")
            expected *= shape[i]
    name = "bool" if tensor.code == 6 else f"{_DL_CODES[tensor.code]}{tensor.bits}"
    memory = CUDA if tensor.device_type == _DL_CUDA else HOST
    return Buffer((tensor.data or 0) + tensor.byte_offset, _elements(shape), dtype_of(name), (array, capsule), False, memory)


def _from_buffer(array):
    try:
        view = memoryview(array)
    except TypeError:
        raise InvalidArgument(
            f"{type(array).__name__} has no array interface, DLPack or buffer protocol; pass an array or a tensor"
        ) from None
    if not view.c_contiguous:
        raise InvalidArgument("the buffer is not C-contiguous")
    if view.format not in _FORMATS:
        raise Unsupported(f"a buffer of format {view.format!r}")
    dtype = DTYPES[_FORMATS[view.format]]
    return Buffer(_from(view), view.nbytes // BYTES[dtype], dtype, view, view.readonly)


def view(array, writable=False):
    """Return the Buffer of `array`: contiguous, in native byte order, and writable where asked for.

    `array` is a NumPy array, a torch tensor, an object with __cuda_array_interface__ or __dlpack__, or one with the
    buffer protocol (bytes, bytearray, array.array, memoryview). Nothing is copied.
    """
    if isinstance(array, Buffer):
        buffer = array
    elif hasattr(type(array), "__array_interface__") and hasattr(array, "dtype"):
        buffer = _from_array_interface(array)
    elif hasattr(array, "data_ptr") and hasattr(array, "is_contiguous"):
        buffer = _from_torch(array)
    elif hasattr(array, "__cuda_array_interface__"):
        buffer = _from_cuda_interface(array)
    elif hasattr(array, "__dlpack__"):
        buffer = _from_dlpack(array)
    else:
        buffer = _from_buffer(array)
    if writable and buffer.readonly:
        raise InvalidArgument(f"the result cannot be written to a read-only {type(array).__name__}")
    return buffer
