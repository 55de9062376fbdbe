"""weft for Python: collectives, declared tensors and steps of a training job.

    import numpy, weft

    with weft.init() as session:                      # started by `weft run -n 2 -- python train.py`
        gradient = numpy.ones(1024, "float32")
        session.all_reduce(gradient, op="avg").wait()

The package is a thin layer over libweft (docs/python.md): the same calls, one object for each C object, and
exceptions that carry the library's sentence. It imports neither numpy nor torch. `import weft.torch` adds
PyTorch.
"""

from ._abi import ffi as _ffi
from ._abi import lib as _lib
from ._comm import Comm
from ._errors import (
    Aborted,
    Again,
    AlreadyExists,
    AuthFailed,
    Busy,
    Cancelled,
    Closed,
    DeadlineExceeded,
    Diverged,
    Forked,
    Grew,
    InternalError,
    RolledBack,
    InvalidArgument,
    IOFailed,
    LimitReached,
    Malformed,
    Mismatch,
    NoMemory,
    NotFound,
    PeerLost,
    Shrunk,
    Stale,
    StepSkipped,
    Truncated,
    Unreachable,
    Unsupported,
    VersionMismatch,
    WeftError,
    WrongState,
)
from ._memory import Memory
from ._outer import OuterSteps
from ._request import PersistentRequest, Request, wait_all
from ._session import Session, init, session
from ._tensor import Tensor

__version__ = _ffi.string(_lib.weft_version()).decode()
__all__ = [name for name in dir() if not name.startswith("_")]
