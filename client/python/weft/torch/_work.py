"""Work objects: operations of a process group under way, and the thread that completes their futures."""

import queue
import threading
from datetime import timedelta

import torch
import torch.distributed as dist

from .._errors import DeadlineExceeded

_FOREVER = timedelta(0)  # torch's default of Work.wait: the operation's own deadline


class Work(dist.Work):
    """Operations of one call. `after` copies results out of temporary tensors, once, when all have completed.

    Any thread may wait; one of them waits for the requests, and the others for it. torch.distributed hands a
    C++ object to the caller, which forwards wait and get_future only: poll with get_future().done().

    On CUDA tensors (`follow`) wait makes the current stream wait, and returns at once. An operation that fails
    raises from there if it has failed by then, else from the next call.
    """

    def __init__(self, requests, outputs, after=()):
        super().__init__()
        self._requests, self._outputs, self._after = requests, outputs, after
        self._lock = threading.Lock()  # held by the thread that waits for the requests
        self._future, self._ended = None, False
        self._order = None  # _streams.Order: the results are there
        self.on_error = None  # called with the exception of an operation, once

    def follow(self, order):
        """The operations are stream-ordered, on the stream of `order`, which is current: queue the copies there."""
        for copy in self._after:
            copy()
        self._after, self._order = (), order

    def _wait_on_stream(self, seconds):
        for request in self._requests:
            if seconds > 0 or request.done:
                request.wait(seconds or None)
        self._order.follow()
        return True

    def wait(self, timeout=_FOREVER):
        """Block until the results are there; raise the operation's error. timeout 0: the operation's own."""
        seconds = timeout.total_seconds()
        if self._order is not None:
            return self._wait_on_stream(seconds)
        if not self._lock.acquire(timeout=seconds if seconds > 0 else -1):
            raise DeadlineExceeded(f"the operation has not completed within {seconds:g} s; it still runs")
        try:
            self._complete(seconds if seconds > 0 else None)
        finally:
            self._lock.release()
        return True

    def _complete(self, seconds=None):
        if self._ended:
            return
        try:
            for request in self._requests:
                request.wait(seconds)
        except Exception as error:
            on_error, self.on_error = self.on_error, None
            if on_error is not None:
                on_error(error)
            raise
        for copy in self._after:
            copy()
        self._requests, self._after, self._ended = (), (), True

    @property
    def done(self):
        """Whether all operations have ended, well or with an error. Never blocks."""
        return all(request.done for request in self._requests)

    def is_completed(self):
        """The same; an operation that has ended well has its results in place afterwards. Never blocks."""
        if not self.done:
            return False
        if self._order is not None:
            return self._order.is_reached
        if self._lock.acquire(blocking=False):
            try:
                self._complete()
            except Exception:
                return True  # wait raises it
            finally:
                self._lock.release()
        return self._ended

    def is_success(self):
        if self._order is not None:
            return self.is_completed() and all(request.ended_well for request in self._requests)
        return self.is_completed() and self._ended

    def result(self):
        self.wait()
        return self._outputs

    def synchronize(self):
        self.wait()

    def get_future(self):
        """The future of the result tensors, complete if the operations are; else a thread waits and completes it.

        Does not block. torchft relies on a complete future after wait().
        """
        if self._future is None and self._order is not None:
            self._future = self._order.complete(self._outputs)
        if self._future is None:
            base = torch.futures.Future()
            # A callback that raises gives the C++ future an error with the exception's text.
            self._future = base.then(self._value)
            if self.done:
                base.set_result(None)
            else:
                _waiter.complete(self, base)
        return self._future

    def _value(self, _):
        self.wait()
        return self._outputs


class _Waiter:
    """One thread that waits for works, in the order of get_future and without the GIL, and sets futures."""

    def __init__(self):
        self._queue, self._thread, self._lock = queue.SimpleQueue(), None, threading.Lock()

    def complete(self, work, future):
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="weft-futures", daemon=True)
                self._thread.start()
        self._queue.put((work, future))

    def _run(self):
        while True:
            work, future = self._queue.get()
            try:
                work.wait()
            except Exception:
                pass  # the future's callback raises it again
            future.set_result(None)
            work = future = None  # the next entry of the queue may be late


_waiter = _Waiter()
