"""Exceptions: one class for each status of weft/status.h. The message is the library's sentence."""

from ._abi import NULL, ffi, lib


class WeftError(RuntimeError):
    """An error of a weft call. `status` is the number of enum weft_status, `name` its C name.

    docs/errors.md and the head of weft.h state which errors leave the session usable.
    """

    status = 0
    name = ""


def _define(name, doc, *bases):
    return type(name, bases or (WeftError,), {"__doc__": doc, "__module__": "weft"})


InvalidArgument = _define("InvalidArgument", "An argument is out of its range; nothing was changed.", WeftError, ValueError)
Unsupported = _define("Unsupported", "Valid, but this build, backend or mode cannot do it.")
WrongState = _define("WrongState", "A valid call at the wrong time, such as a push outside a step.")
NotFound = _define("NotFound", "A name, file or host that does not exist.")
AlreadyExists = _define("AlreadyExists", "A name, port or file that is taken.")
Forked = _define("Forked", "The session belongs to the parent process of a fork.")
Busy = _define("Busy", "A request or buffer is still in use.")
Again = _define("Again", "Nothing was queued; call again after some progress.")
NoMemory = _define("NoMemory", "An allocation failed; nothing was changed.", WeftError, MemoryError)
LimitReached = _define("LimitReached", "A limit is reached; the sentence has its name and value.")
DeadlineExceeded = _define("DeadlineExceeded", "A deadline has passed; the sentence names the awaited process.", WeftError, TimeoutError)
Cancelled = _define("Cancelled", "The request was cancelled.")
IOFailed = _define("IOFailed", "A file or disk operation failed; the sentence names file and reason.", WeftError, OSError)
Malformed = _define("Malformed", "Bytes break their format; nothing of them was used.")
Truncated = _define("Truncated", "A message is longer than its buffer.")
VersionMismatch = _define("VersionMismatch", "A peer or file has a version that this library does not support.")
AuthFailed = _define("AuthFailed", "The job secret is wrong or missing.")
PeerLost = _define("PeerLost", "A process died or its connection broke; the sentence names it.", WeftError, ConnectionError)
Unreachable = _define("Unreachable", "No connection could be made.", WeftError, ConnectionError)
Mismatch = _define("Mismatch", "Ranks made different calls; the sentence names the ranks and the difference.")
Diverged = _define("Diverged", "Replicas that must have equal bits differ.")
Stale = _define("Stale", "Of an older epoch, incarnation or step.")
Shrunk = _define("Shrunk", "Ranks were lost and the others continue: repeat the step that Session.step_next names.")
Grew = _define("Grew", "Ranks are new: copy the state from rank 0, then begin the step that Session.step_next names.")
StepSkipped = _define("StepSkipped", "A gradient is NaN or infinite: no rank has taken the step.")
Closed = _define("Closed", "The session is closed.")
Aborted = _define("Aborted", "A process aborted the job; the sentence has its name and reason.")
InternalError = _define("InternalError", "A defect of weft; please report the sentence.")

_BY_NAME = {
    "WEFT_ERR_INVALID": InvalidArgument,
    "WEFT_ERR_UNSUPPORTED": Unsupported,
    "WEFT_ERR_STATE": WrongState,
    "WEFT_ERR_NOT_FOUND": NotFound,
    "WEFT_ERR_EXISTS": AlreadyExists,
    "WEFT_ERR_FORKED": Forked,
    "WEFT_ERR_BUSY": Busy,
    "WEFT_ERR_AGAIN": Again,
    "WEFT_ERR_NO_MEMORY": NoMemory,
    "WEFT_ERR_LIMIT": LimitReached,
    "WEFT_ERR_DEADLINE": DeadlineExceeded,
    "WEFT_ERR_CANCELLED": Cancelled,
    "WEFT_ERR_IO": IOFailed,
    "WEFT_ERR_MALFORMED": Malformed,
    "WEFT_ERR_TRUNCATED": Truncated,
    "WEFT_ERR_VERSION": VersionMismatch,
    "WEFT_ERR_AUTH": AuthFailed,
    "WEFT_ERR_PEER_LOST": PeerLost,
    "WEFT_ERR_UNREACHABLE": Unreachable,
    "WEFT_ERR_MISMATCH": Mismatch,
    "WEFT_ERR_DIVERGED": Diverged,
    "WEFT_ERR_STALE": Stale,
    "WEFT_ERR_GREW": Grew,
    "WEFT_ERR_SKIPPED": StepSkipped,
    "WEFT_ERR_SHRUNK": Shrunk,
    "WEFT_ERR_CLOSED": Closed,
    "WEFT_ERR_ABORTED": Aborted,
    "WEFT_ERR_INTERNAL": InternalError,
}


def error(status, sentence=""):
    """Return the exception of `status`, with `sentence` or the general sentence of the status."""
    name = ffi.string(lib.weft_status_name(status)).decode()
    if not sentence:
        sentence = ffi.string(lib.weft_status_text(status)).decode()
    made = _BY_NAME.get(name, WeftError)(sentence)
    made.status, made.name = int(status), name
    return made


def check(status, session=NULL):
    """Raise the exception of a negative `status`; the sentence is that of `session` (a C pointer or NULL)."""
    if status < 0:
        raise error(status, ffi.string(lib.weft_error_text(session)).decode(errors="replace"))
    return status
