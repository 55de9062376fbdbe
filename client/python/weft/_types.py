"""Names of element types, reductions and operations, as C constants, and checks of other arguments."""

import numbers
import operator

from ._abi import lib
from ._errors import InvalidArgument

DTYPES = {
    "f32": lib.WEFT_F32, "float32": lib.WEFT_F32,
    "f64": lib.WEFT_F64, "float64": lib.WEFT_F64,
    "f16": lib.WEFT_F16, "float16": lib.WEFT_F16,
    "bf16": lib.WEFT_BF16, "bfloat16": lib.WEFT_BF16,
    "e4m3": lib.WEFT_F8_E4M3, "float8_e4m3fn": lib.WEFT_F8_E4M3,
    "e5m2": lib.WEFT_F8_E5M2, "float8_e5m2": lib.WEFT_F8_E5M2,
    "i8": lib.WEFT_I8, "int8": lib.WEFT_I8,
    "u8": lib.WEFT_U8, "uint8": lib.WEFT_U8, "bool": lib.WEFT_U8,
    "i32": lib.WEFT_I32, "int32": lib.WEFT_I32,
    "u32": lib.WEFT_U32, "uint32": lib.WEFT_U32,
    "i64": lib.WEFT_I64, "int64": lib.WEFT_I64,
    "u64": lib.WEFT_U64, "uint64": lib.WEFT_U64,
}  # fmt: skip
BYTES = {value: lib.weft_dtype_bytes(value) for value in set(DTYPES.values())}
OPS = {
    "sum": lib.WEFT_SUM, "avg": lib.WEFT_AVG, "prod": lib.WEFT_PROD, "min": lib.WEFT_MIN, "max": lib.WEFT_MAX,
    "and": lib.WEFT_AND, "or": lib.WEFT_OR, "xor": lib.WEFT_XOR,
}  # fmt: skip
MODES = {None: 0, "server": lib.WEFT_MODE_SERVER, "all_reduce": lib.WEFT_MODE_ALL_REDUCE}


def lookup(table, value, what):
    """Return the constant of a name in `table`; a number stays itself."""
    if isinstance(value, int):
        return value
    try:
        return table[value]
    except (KeyError, TypeError):
        known = ", ".join(str(name) for name in table if name is not None)
        raise InvalidArgument(f"{what} {value!r} does not exist; use one of: {known}") from None


def dtype_of(value):
    """Return the C constant of a dtype: a name such as "f32" or "bfloat16", a NumPy or torch dtype, or a constant."""
    if isinstance(value, (int, str)):
        return lookup(DTYPES, value, "dtype")
    name = getattr(value, "name", None) or getattr(value, "__name__", None) or str(value)
    return lookup(DTYPES, name.rsplit(".", 1)[-1], "dtype")


def milliseconds(seconds):
    """Return a timeout of weft.h: milliseconds, at least 1; 0 for None and infinity, which take the default."""
    if seconds is None or seconds == float("inf"):
        return 0
    if not isinstance(seconds, numbers.Real) or seconds != seconds:
        raise InvalidArgument(f"timeout {seconds!r}; pass a number of seconds")
    return max(1, int(seconds * 1000))


def c_text(value, what):
    """Return the C string of a str."""
    if not isinstance(value, str):
        raise InvalidArgument(f"{what} {value!r}; pass a str")
    return value.encode()


def whole(value, what):
    """Return an int that is not negative: a rank, a number of bytes."""
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if number < 0:
        raise InvalidArgument(f"{what} {value!r}; pass an int of at least 0")
    return number
