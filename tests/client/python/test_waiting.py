"""Waits release the GIL, asyncio waits on the descriptor, and memory outlives the session."""

import pytest

np = pytest.importorskip("numpy")


def gathered():
    import weft

    with weft.init() as session:
        array = np.ones(4, "float32")
        tensor = session.declare("w", (64, 64), codec="powersgd:rank=1")
        with session.step(), session.group():
            requests = [session.all_reduce(array), tensor.push_pull(np.ones((64, 64), "float32"))]
            session._sweep()
            for request in requests:
                assert not request.done and not request.test()
                with pytest.raises(weft.WrongState, match="still open"):
                    request.wait()
        assert all(request.wait() is not None for request in requests) and array[0] == session.ranks


def test_a_request_of_an_open_group_is_open(job):
    job(2, gathered)


def threads():
    import threading

    import weft

    with weft.init() as session:
        ranks, results = session.ranks, {}
        started = [session.all_reduce(np.full(1 << 16, i, "float32")) for i in range(8)]

        def collect(index):
            results[index] = float(started[index].wait()[-1])

        waiters = [threading.Thread(target=collect, args=(i,)) for i in range(8)]
        for waiter in waiters:
            waiter.start()
        total = sum(i * i for i in range(300_000))  # Python computes while the others wait
        for waiter in waiters:
            waiter.join()
        assert total > 0 and results == {i: float(i * ranks) for i in range(8)}

        running = threading.Event()

        def blocked():
            running.set()
            session.recv(np.empty(1), 1 - session.rank).wait()

        thread = threading.Thread(target=blocked)
        thread.start()
        running.wait()
        for i in range(50):  # the other thread waits inside the library
            assert session.all_reduce(np.full(4, i)).wait()[0] == i * ranks
        session.send(np.ones(1), 1 - session.rank).wait()
        thread.join()
        session.barrier().wait()


def test_threads(job):
    job(2, threads)


def coroutines():
    import asyncio

    import weft

    with weft.init() as session:
        ranks = session.ranks
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        async def main():
            ticking = asyncio.ensure_future(tick())
            started = [session.all_reduce(np.full(1 << 18, i, "float32")) for i in range(6)]
            results = await asyncio.gather(*started)
            assert [float(result[0]) for result in results] == [i * ranks for i in range(6)]
            if session.rank == 0:
                before = ticks
                assert (await session.recv(np.empty(2), 1))[0] == 5
                assert ticks > before  # the event loop ran meanwhile
            else:
                await asyncio.sleep(0.2)
                await session.send(np.full(2, 5.0), 0)
            ticking.cancel()

        for _ in range(2):  # a second event loop gets a reader of its own
            asyncio.run(main())
        session.barrier().wait()


def test_asyncio(job):
    job(2, coroutines)


def outlive():
    import gc

    import weft

    session = weft.init()
    kept, dropped = session.empty(1 << 18, "f32"), session.empty(16)
    view = memoryview(session.alloc(1 << 20).buffer)  # holds the memory by itself
    gc.collect()
    view[:] = bytes([5]) * (1 << 20)
    session.all_reduce(view, op="max").wait()
    session.all_reduce(kept).wait()
    kept[:] = 3
    del dropped
    session.finalize()
    session.finalize()
    assert kept.sum() == 3 * (1 << 18) and view[-1] == 5
    kept += 1
    del kept, view
    gc.collect()


def test_arrays_outlive_the_session(job):
    job(2, outlive)
    job(1, outlive)


def fork():
    import os

    import weft

    with weft.init() as session:
        values = session.empty(4)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                session.all_reduce(np.ones(4))
            except weft.Forked:
                session.finalize()
                del values
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        values[:] = 1
        assert (session.all_reduce(values).wait() == session.ranks).all()


def test_fork(job):
    job(2, fork)


def interrupted():
    import os
    import signal
    import threading

    import weft

    with weft.init() as session:
        if session.rank == 0:
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            try:
                session.recv(np.empty(1), 1).wait()
            except KeyboardInterrupt:
                print("interrupted inside wait")
            else:
                raise AssertionError("no KeyboardInterrupt")
        session.barrier().wait()
        if session.rank == 1:
            session.send(np.ones(1), 0).wait()
        session.barrier().wait()


def test_interrupt_reaches_a_wait(job):
    assert "interrupted inside wait" in job(2, interrupted)
