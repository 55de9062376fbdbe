"""Exceptions: one class for each status of weft/status.h. The message is the library's sentence."""

from ._abi import NULL, ffi, lib


class WeftError(RuntimeError):
    """An error of a weft call. `status` is the number of enum weft_status, `name` its C name.

    docs/errors.md and the head of weft.h state which errors leave the session usable.
    """

    status = 0
    name = ""


_BY_NAME = {}  # C name of a status: its class


def _define(name, status_name, doc, *bases):
    made = type(name, (WeftError, *bases), {"__doc__": doc, "__module__": "weft"})
    _BY_NAME[status_name] = made
    return made


InvalidArgument = _define("InvalidArgument", "WEFT_ERR_INVALID",
                          "An argument is out of its range; nothing was changed.", ValueError)  # fmt: skip
Unsupported = _define("Unsupported", "WEFT_ERR_UNSUPPORTED", "Valid, but this build, backend or mode cannot do it.")
WrongState = _define("WrongState", "WEFT_ERR_STATE", "A valid call at the wrong time, such as a push outside a step.")
NotFound = _define("NotFound", "WEFT_ERR_NOT_FOUND", "A name, file or host that does not exist.")
AlreadyExists = _define("AlreadyExists", "WEFT_ERR_EXISTS", "A name, port or file that is taken.")
Forked = _define("Forked", "WEFT_ERR_FORKED", "The session belongs to the parent process of a fork.")
Busy = _define("Busy", "WEFT_ERR_BUSY", "A request or buffer is still in use.")
Again = _define("Again", "WEFT_ERR_AGAIN", "Nothing was queued; call again after some progress.")
NoMemory = _define("NoMemory", "WEFT_ERR_NO_MEMORY", "An allocation failed; nothing was changed.", MemoryError)
LimitReached = _define("LimitReached", "WEFT_ERR_LIMIT", "A limit is reached; the sentence has its name and value.")
DeadlineExceeded = _define("DeadlineExceeded", "WEFT_ERR_DEADLINE",
                           "A deadline has passed; the sentence names the awaited process.", TimeoutError)  # fmt: skip
Cancelled = _define("Cancelled", "WEFT_ERR_CANCELLED", "The request was cancelled.")
IOFailed = _define("IOFailed", "WEFT_ERR_IO",
                   "A file or disk operation failed; the sentence names file and reason.", OSError)  # fmt: skip
Malformed = _define("Malformed", "WEFT_ERR_MALFORMED", "Bytes break their format; nothing of them was used.")
Truncated = _define("Truncated", "WEFT_ERR_TRUNCATED", "A message is longer than its buffer.")
VersionMismatch = _define("VersionMismatch", "WEFT_ERR_VERSION",
                          "A peer or file has a version that this library does not support.")  # fmt: skip
AuthFailed = _define("AuthFailed", "WEFT_ERR_AUTH", "The job secret is wrong or missing.")
PeerLost = _define("PeerLost", "WEFT_ERR_PEER_LOST",
                   "A process died or its connection broke; the sentence names it.", ConnectionError)  # fmt: skip
Unreachable = _define("Unreachable", "WEFT_ERR_UNREACHABLE", "No connection could be made.", ConnectionError)
Mismatch = _define("Mismatch", "WEFT_ERR_MISMATCH",
                   "Ranks made different calls; the sentence names the ranks and the difference.")  # fmt: skip
Diverged = _define("Diverged", "WEFT_ERR_DIVERGED", "Replicas that must have equal bits differ.")
Stale = _define("Stale", "WEFT_ERR_STALE", "Of an older epoch, incarnation or step.")
Shrunk = _define("Shrunk", "WEFT_ERR_SHRUNK",
                 "Ranks were lost and the others continue: repeat the step that Session.step_next names.")  # fmt: skip
Grew = _define("Grew", "WEFT_ERR_GREW",
               "Ranks are new: copy the state from rank 0, then begin the step that Session.step_next names.")  # fmt: skip
StepSkipped = _define("StepSkipped", "WEFT_ERR_SKIPPED", "A gradient is NaN or infinite: no rank has taken the step.")
Closed = _define("Closed", "WEFT_ERR_CLOSED", "The session is closed.")
Aborted = _define("Aborted", "WEFT_ERR_ABORTED", "A process aborted the job; the sentence has its name and reason.")
RolledBack = _define("RolledBack", "WEFT_ERR_ROLLED_BACK",
                     "Weights at shards are lost and the job begins again from its last snapshot: close the "
                     "session, open another, and begin the step that Session.step_next names.")  # fmt: skip
InternalError = _define("InternalError", "WEFT_ERR_INTERNAL", "A defect of weft; please report the sentence.")


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
