"""How tensors travel: address, count and dtype, and temporary tensors where memory does not fit."""

import torch

from .._errors import Unsupported
from .._types import DTYPES, OPS

_DTYPES = {
    getattr(torch, name): value for name, value in DTYPES.items() if hasattr(torch, name) and name != "bool"
}
_NARROW = {
    dtype: torch.int32 for name in ("int16", "uint16") if (dtype := getattr(torch, name, None)) is not None
}
_OPS = {
    "SUM": OPS["sum"],
    "AVG": OPS["avg"],
    "PRODUCT": OPS["prod"],
    "MIN": OPS["min"],
    "MAX": OPS["max"],
    "BAND": OPS["and"],
    "BOR": OPS["or"],
    "BXOR": OPS["xor"],
}
_BOOL_OPS = {
    "SUM": "BOR",
    "MAX": "BOR",
    "BOR": "BOR",
    "PRODUCT": "BAND",
    "MIN": "BAND",
    "BAND": "BAND",
    "BXOR": "BXOR",
}


class Reduction:
    """A ReduceOp for tensors of one dtype: `op` and `factor` of a call, and the `temporary` dtype or None."""

    def __init__(self, reduce_op, dtype):
        name = getattr(reduce_op, "op", reduce_op).name
        self.factor, self.temporary = None, None
        if name == "PREMUL_SUM":
            self.factor, name = float(reduce_op.__getstate__()[1]), "SUM"
        if dtype == torch.bool:
            name = _BOOL_OPS.get(name)
            self.temporary = torch.uint8
        elif dtype.is_complex:
            name = name if name in ("SUM", "AVG") else None
        elif dtype in _NARROW:
            self.temporary = _NARROW[dtype]
        elif dtype not in _DTYPES:
            name = None
        if name not in _OPS:
            raise Unsupported(f"weft cannot reduce {dtype} with {getattr(reduce_op, 'op', reduce_op).name}")
        self.op = _OPS[name]

    def view(self, tensor):
        """The tensor as weft reduces it: `tensor` itself, a view of it, or a copy in the temporary dtype."""
        if self.temporary == torch.uint8:
            return tensor.view(torch.uint8)
        if self.temporary is not None:
            return tensor.to(self.temporary)
        return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def described(tensor):
    """(address, count, dtype, scale) of a contiguous tensor. Elements unknown to weft travel as bytes.

    count is `scale` times the number of the tensor's elements.
    """
    known = _DTYPES.get(tensor.dtype)
    scale = 1 if known is not None else tensor.element_size()
    return tensor.data_ptr(), tensor.numel() * scale, DTYPES["u8"] if known is None else known, scale


def written(tensor, after, view=lambda tensor: tensor):
    """A contiguous tensor for a result; if it is not `tensor` itself, `after` gets the copy back to it."""
    place = view(tensor if tensor.is_contiguous() else tensor.contiguous())
    if place.data_ptr() != tensor.data_ptr():
        shaped = place.reshape(tensor.shape)
        after.append(lambda: tensor.copy_(shaped))
    return place


def flat(tensors):
    """One contiguous tensor with the elements of `tensors`, one after the other."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def flat_result(tensors, after):
    """A new tensor (n,) for the elements of `tensors`; `after` gets the copies to them."""
    whole = tensors[0].new_empty(sum(tensor.numel() for tensor in tensors))

    def copy():
        for tensor, piece in zip(tensors, whole.split([tensor.numel() for tensor in tensors])):
            tensor.copy_(piece.view(tensor.shape))

    after.append(copy)
    return whole
