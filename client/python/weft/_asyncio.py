"""Waiting inside asyncio: one reader of the session's descriptor per event loop."""

import asyncio

from ._abi import ffi, lib


class _Reader:
    """Completes the futures of open requests when the session's descriptor is readable."""

    def __init__(self, session, loop):
        self.session, self.loop, self.waiting = session, loop, []
        descriptor = ffi.new("int *")
        session._check(lib.weft_event_fd(session._c, descriptor))
        self.descriptor = descriptor[0]

    def add(self, request, future):
        if not self.waiting:
            self.loop.add_reader(self.descriptor, self.ready)
        self.waiting.append((request, future))

    def ready(self):
        # The descriptor is cleared before the requests are tested, so no completion is missed.
        lib.weft_event_clear(self.session._c)
        still = []
        for request, future in self.waiting:
            if future.done():
                continue
            if request.done:
                future.set_result(None)
            else:
                still.append((request, future))
        self.waiting = still
        if not still:
            self.loop.remove_reader(self.descriptor)


async def wait_for(request):
    """Return the output of `request`; the event loop runs meanwhile. Raises the operation's error."""
    if not request.done:
        loop = asyncio.get_running_loop()
        session = request._session
        reader = session._readers.get(loop)
        if reader is None:
            reader = session._readers[loop] = _Reader(session, loop)
        future = loop.create_future()
        reader.add(request, future)
        reader.ready()  # the request may have completed before the reader was added
        await future
    request.test()
    return request.result
