"""Requests: operations under way."""

import threading
import time

import _cffi_backend

from ._abi import ffi, lib
from ._errors import DeadlineExceeded, check
from ._types import milliseconds

# weft_wait returns to Python this often, so that the main thread can take Ctrl-C.
_SLICE_MS = 500
_MAIN = threading.main_thread().ident
_new, _C_REQUEST = _cffi_backend.newp, ffi.typeof("struct weft_request *")
# Answers of weft_test for an open request: WEFT_ERR_STATE where its group of calls has not ended.
OPEN = (lib.WEFT_IN_PROGRESS, lib.WEFT_ERR_STATE)
_GOES_ON = (lib.WEFT_ERR_DEADLINE, lib.WEFT_ERR_STATE)
_wait, _test, _get_ident = lib.weft_wait, lib.weft_test, threading.get_ident


class Request:
    """An operation under way. It keeps the buffers of the operation alive until it has completed.

    `wait` blocks without the GIL; `done` never blocks; `await request` waits inside asyncio. Other threads may
    wait while one thread starts further calls. A request that nothing waits for is completed by
    Session.finalize at the latest.
    """

    __slots__ = ("_c", "_keep", "_session", "_status", "result", "__weakref__")

    def __init__(self, session, keep=(), result=None):
        self._c = _new(_C_REQUEST)
        self._session, self._keep, self.result = session, keep, result
        self._status = None  # final status; None: open

    def _finish(self, status):
        if self._status is None:
            self._status, self._keep = status, ()
            self._session._open.discard(self)
        if self._status < 0:
            check(self._status, self._session._c)
        return self.result

    @property
    def done(self):
        """Whether the operation has ended, well or with an error. Never blocks."""
        return self._status is not None or _test(self._c) not in OPEN

    @property
    def ended_well(self):
        """Whether the operation has completed without an error. Never blocks."""
        status = _test(self._c) if self._status is None else self._status
        return status >= 0 and status not in OPEN

    def test(self):
        """Return False while the operation is under way, True after it has completed; raise its error."""
        if self._status is None:
            status = _test(self._c)
            if status in OPEN:
                return False
            self._finish(status)
        return True

    def wait(self, timeout=None):
        """Block until the operation completes and return its output array. Other Python threads run meanwhile.

        timeout: seconds; default: the session's deadline. Raises the operation's error, or DeadlineExceeded;
        then the operation goes on and wait may be called again.
        """
        if self._status is not None:
            return self._finish(self._status)
        limit_ms = self._session._deadline_ms if timeout is None else milliseconds(timeout) or self._session._deadline_ms
        if limit_ms <= _SLICE_MS or _get_ident() != _MAIN:
            status = _wait(self._c, limit_ms)
        else:
            status = _wait(self._c, _SLICE_MS)
            if status == lib.WEFT_ERR_DEADLINE:
                status = self._wait_in_slices(limit_ms - _SLICE_MS)
        if status in _GOES_ON and _test(self._c) in OPEN:
            check(status, self._session._c)  # the operation goes on
        return self._finish(status)

    def _wait_in_slices(self, limit_ms):
        until = time.monotonic() + limit_ms / 1000
        while True:
            left = int((until - time.monotonic()) * 1000)
            status = _wait(self._c, max(1, min(_SLICE_MS, left)))
            if status != lib.WEFT_ERR_DEADLINE or left <= _SLICE_MS or _test(self._c) != lib.WEFT_IN_PROGRESS:
                return status

    def cancel(self):
        """End the operation before it has begun on any rank; raise Busy where it cannot be cancelled."""
        self._session._check(lib.weft_cancel(self._c))

    def __await__(self):
        from ._asyncio import wait_for

        return wait_for(self).__await__()


class PersistentRequest(Request):
    """An operation that is validated once and started many times on the same buffers (Session.persistent).

    start() takes about half a microsecond and allocates nothing. Start it again only after wait or test.
    """

    __slots__ = ("_buffers",)

    def start(self):
        """Start the operation; return self. Does not block."""
        session = self._session
        with session._lock:
            status = lib.weft_start(self._c)
        if status < 0:
            session._check(status)
        self._status = None
        session._open.add(self)
        return self

    def free(self):
        """Release the operation. Raises Busy while it is open."""
        self._session._check(lib.weft_request_free(self._c))
        self._buffers = None


def wait_all(requests, timeout=None):
    """Wait for all `requests` and return their output arrays; raise the first error after all have ended.

    timeout: seconds, for all together; default: the session's deadline.
    """
    requests = list(requests)
    until = None if timeout is None else time.monotonic() + timeout
    first = None
    for request in requests:
        try:
            request.wait(None if until is None else max(0.001, until - time.monotonic()))
        except DeadlineExceeded:
            raise
        except Exception as failure:  # the others must end before their buffers are free
            first = first or failure
    if first:
        raise first
    return [request.result for request in requests]
