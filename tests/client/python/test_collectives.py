"""Every operation on every kind of array, against NumPy."""

import pytest

np = pytest.importorskip("numpy")


def operations():
    import weft

    with weft.init() as session:
        rank, ranks = session.rank, session.ranks
        whole = np.arange(ranks * 6, dtype="float32").reshape(ranks, 6)
        each = [whole * (r + 1) for r in range(ranks)]
        mine, total = each[rank].copy(), sum(each)

        out = np.empty_like(mine)
        assert session.all_reduce(mine, out).wait() is out
        assert (out == total).all() and (mine == each[rank]).all()
        assert (session.all_reduce(mine.copy(), op="avg").wait() == total / ranks).all()
        assert (session.all_reduce(mine.copy(), op="max").wait() == each[-1]).all()
        assert (session.all_reduce(mine.copy(), op="min").wait() == each[0]).all()
        assert (session.all_reduce(mine.copy(), factor=rank + 1.0).wait() == sum(e * (r + 1) for r, e in enumerate(each))).all()
        weights = [1.0, 3.0, 0.0, 2.0][:ranks]
        mean = sum(w * e.astype("float64") for w, e in zip(weights, each)) / sum(weights)
        assert np.allclose(session.all_reduce(mine.copy(), op="avg", weight=weights[rank]).wait(), mean)
        assert (session.all_reduce(mine.copy(), reproducible=True, timeout=20).wait() == total).all()

        piece = np.empty(6, "float32")
        assert (session.reduce_scatter(mine, piece).wait() == total[rank]).all()
        gathered = np.empty_like(whole)
        assert (session.all_gather(each[rank][0].copy(), gathered).wait() == [e[0] for e in each]).all()
        for root in range(ranks):
            assert (session.broadcast(mine.copy(), root).wait() == each[root]).all()
            result = session.reduce(mine, np.zeros_like(mine), root=root).wait()
            assert (result == total).all() if rank == root else result is None
            result = session.gather(each[rank][0].copy(), gathered if rank == root else None, root).wait()
            assert (result == [e[0] for e in each]).all() if rank == root else result is None
            session.scatter(each[root] if rank == root else None, piece, root).wait()
            assert (piece == each[root][rank]).all()
        session.all_to_all(mine, out).wait()
        assert (out == [e[rank] for e in each]).all()
        session.barrier().wait()
        if ranks == 1:
            return
        received = np.empty(6, "float32")
        requests = [session.send(each[rank][0].copy(), (rank + 1) % ranks), session.recv(received, (rank - 1) % ranks)]
        assert weft.wait_all(requests)[1] is received
        assert (received == each[(rank - 1) % ranks][0]).all()


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_operations(job, ranks):
    job(ranks, operations)


def dtypes():
    import array

    import weft

    with weft.init() as session:
        ranks = session.ranks
        for name in "float64 float32 float16 int8 uint8 int32 uint32 int64 uint64".split():
            assert (session.all_reduce(np.ones(5, name)).wait() == ranks).all(), name
        assert session.all_reduce(np.ones(3, bool), op="and").wait().all()
        numbers = array.array("d", [1.0, 2.0])
        assert session.all_reduce(numbers).wait().tolist() == [ranks, 2.0 * ranks]
        data = bytearray(b"\x01\x02")
        assert session.all_reduce(data).wait() == bytes([ranks, 2 * ranks])
        view = memoryview(array.array("i", [3]))
        assert session.all_reduce(view).wait()[0] == 3 * ranks
        scalar = np.array(2.0)
        assert session.all_reduce(scalar).wait() == 2.0 * ranks
        empty = np.empty((0, 4), "float32")
        session.all_reduce(empty).wait()
        big = np.ones((1000, 333), "float32")
        assert (session.all_reduce(big).wait() == ranks).all()

        class OnlyDlpack:
            def __init__(self, array):
                self.array = array

            def __dlpack__(self):
                return self.array.__dlpack__()

        inner = np.ones((4, 8), "float32")
        session.all_reduce(OnlyDlpack(inner)).wait()
        assert (inner == ranks).all()

        memory = session.empty((4, 256), "f32")
        memory[:] = session.rank + 1
        assert (session.all_reduce(memory).wait() == ranks * (ranks + 1) / 2).all()


def test_dtypes_and_kinds_of_arrays(job):
    job(2, dtypes)


def refusals():
    import weft

    def refused(kind, words, call):
        try:
            call()
        except kind as error:
            assert words in str(error), error
        else:
            raise AssertionError(f"no {kind.__name__}: {words}")

    with weft.init() as session:
        square = np.ones((4, 4), "float32")
        constant = np.ones(4, "float32")
        constant.flags.writeable = False
        refused(weft.InvalidArgument, "not C-contiguous", lambda: session.all_reduce(square[:, ::2]))
        refused(weft.InvalidArgument, "not C-contiguous", lambda: session.all_reduce(np.asfortranarray(np.ones((2, 3)))))
        refused(weft.InvalidArgument, "read-only", lambda: session.all_reduce(constant))
        refused(weft.InvalidArgument, "read-only", lambda: session.all_reduce(b"abcd"))
        refused(weft.InvalidArgument, "no array interface", lambda: session.all_reduce([1, 2, 3]))
        refused(weft.InvalidArgument, "big-endian", lambda: session.all_reduce(np.ones(4, ">f4")))
        refused(weft.InvalidArgument, "complex128", lambda: session.all_reduce(np.ones(4, "complex128")))
        refused(weft.InvalidArgument, "op 'mean'", lambda: session.all_reduce(square, op="mean"))
        refused(weft.InvalidArgument, "dtypes", lambda: session.all_reduce(square, np.ones((4, 4))))
        refused(weft.InvalidArgument, "needs 16", lambda: session.all_reduce(square, np.ones(4, "float32")))
        refused(weft.InvalidArgument, "needs", lambda: session.all_gather(square, np.ones(16, "float32")))
        refused(weft.InvalidArgument, "root", lambda: session.broadcast(square, 9).wait())
        refused(ValueError, "overlap", lambda: session.all_reduce(square.reshape(-1)[:8], square.reshape(-1)[4:12]))
        refused(weft.InvalidArgument, "the array is None", lambda: session.all_reduce(None))
        refused(weft.InvalidArgument, "op []", lambda: session.all_reduce(square, op=[]))
        refused(weft.InvalidArgument, "comm 3", lambda: session.all_reduce(square, comm=3))
        refused(weft.InvalidArgument, "root -1", lambda: session.broadcast(square, -1))
        refused(weft.InvalidArgument, "to 0.5", lambda: session.send(square, 0.5))
        refused(weft.InvalidArgument, "rank -1", lambda: session.comm_create([0, -1]))
        refused(weft.InvalidArgument, "nbytes -5", lambda: session.alloc(-5))
        refused(weft.InvalidArgument, "shape (-1,)", lambda: session.empty((-1,)))
        refused(weft.InvalidArgument, "codec 5", lambda: session.declare("c", 4, codec=5))
        refused(weft.InvalidArgument, "name 5", lambda: session.declare(5, 4))
        refused(weft.InvalidArgument, "plan None", lambda: session.set_plan(None))
        request = session.all_reduce(np.ones(2))
        for timeout in ("1", float("nan")):
            refused(weft.InvalidArgument, f"timeout {timeout!r}", lambda: session.all_reduce(square, timeout=timeout))
            refused(weft.InvalidArgument, f"timeout {timeout!r}", lambda: request.wait(timeout))
        request.wait(float("inf"))
        for shape in ("4x4", (-1, 4), (4, 0), 1.5, [4, None]):
            refused(weft.InvalidArgument, "positive int", lambda: session.declare("shapeless", shape))
        refused(weft.AlreadyExists, "this process has a session", lambda: weft.init(rank=session.rank))
        session.all_reduce(square).wait()  # the session is usable
        assert square[0, 0] == session.ranks
    refused(weft.Closed, "the session has ended", lambda: session.all_reduce(square))
    refused(weft.Closed, "the session has ended", lambda: session.declare("late", 4))


def test_refusals_leave_the_session_usable(job):
    job(2, refusals)


def requests():
    import gc

    import weft

    with weft.init() as session:
        ranks = session.ranks
        values = np.ones(64, "float32")
        persistent = session.persistent("all_reduce", values)
        for _ in range(3):
            assert persistent.start().wait() is values
        assert (values == ranks**3).all()
        persistent.free()
        started = [session.all_reduce(np.full(10, i, "int64")) for i in range(20)]
        assert [int(one.wait()[0]) for one in reversed(started)] == [i * ranks for i in reversed(range(20))]
        with session.group():
            grouped = [session.all_reduce(np.ones(8, "float32")) for _ in range(5)]
        assert all((one.wait() == ranks).all() for one in grouped)
        done = session.all_reduce(np.ones(1))
        while not done.test():
            pass
        assert done.done and done.wait()[0] == ranks
        for _ in range(3000):  # nothing waits for these; their arrays stay alive until they have completed
            session.all_reduce(np.ones(100, "float32"))
        gc.collect()
        session.barrier().wait()
        session._sweep()
        assert not session._open
        late = np.zeros(4)
        if session.rank == 0:
            waiting = session.recv(late, 1)
            try:
                waiting.wait(timeout=0.05)
            except weft.DeadlineExceeded as error:
                assert "rank 1" in str(error) and isinstance(error, TimeoutError)
            else:
                raise AssertionError("no deadline")
            session.barrier().wait()
            assert (waiting.wait() == 7).all()
        else:
            session.barrier().wait()
            session.send(np.full(4, 7.0), 0).wait()
        session.barrier().wait()


def test_requests(job):
    job(2, requests)


def groups():
    import weft

    with weft.init() as session:
        half = session.split(session.rank % 2)
        assert half.ranks == 2 and half.members == [session.rank % 2, session.rank % 2 + 2]
        total = session.all_reduce(np.full(3, session.rank), comm=half).wait()
        assert (total == sum(half.members)).all()
        if session.rank in (3, 1):
            pair = session.comm_create([3, 1], tag=7)  # ranks 0 and 2 take no part
            assert pair.members == [3, 1] and pair.rank == (session.rank == 1)
            assert (session.all_gather(np.array([session.rank]), np.empty(2, "int64"), comm=pair).wait() == [3, 1]).all()
        assert session.split(-1 if session.rank == 3 else 0) is None or session.rank != 3
        half.free()
        half.free()
        try:
            session.all_reduce(np.ones(3), comm=half)
        except weft.WrongState as error:
            assert "freed" in str(error)
        else:
            raise AssertionError("a freed group was used")


def test_groups(job):
    job(4, groups)


def answers():
    import weft

    with weft.init() as session:
        session.all_reduce(np.ones(1 << 16, "float32")).wait()
        assert "one-host" in session.explain("all_reduce", 1 << 20)
        assert session.stats()["requests"] >= 1
        assert len(session.links()) == session.ranks - 1
        session.nccl_open(0)  # two ranks cannot share a device
        assert "not by NCCL inside hosts, as" in session.explain("all_reduce", 1 << 20)
        session.dump_events(f"flight-{session.rank}.json")
        session.set_plan("ring")
        assert (session.all_reduce(np.ones(10)).wait() == session.ranks).all()


def test_answers(job, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job(2, answers)
    assert (tmp_path / "flight-0.json").stat().st_size > 100
