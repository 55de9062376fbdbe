"""A lost rank and a failed rank are exceptions that name them."""

import pytest

np = pytest.importorskip("numpy")


def killed():
    import os
    import signal

    import weft

    session = weft.init()
    session.all_reduce(np.ones(4)).wait()
    if session.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            session.all_reduce(np.ones(1 << 16)).wait()
    except weft.PeerLost as error:
        assert error.name == "WEFT_ERR_PEER_LOST" and isinstance(error, ConnectionError)
        print("lost:", error)
    session.finalize()


def test_a_killed_rank_is_named(job):
    status, text = job.run(3, killed)
    assert status != 0  # of the launcher: rank 1 was killed
    lines = job.lines("lost:")
    assert len(lines) == 2 and all("rank 1" in line for line in lines), text


def failing():
    import weft

    with weft.init() as session:
        session.barrier().wait()
        if session.rank == 1:
            raise ZeroDivisionError("in the data loader")
        try:
            session.barrier().wait()
        except weft.Aborted as error:
            print("aborted:", error)
            raise SystemExit(0) from None


def test_an_exception_of_one_rank_reaches_the_others(job):
    status, text = job.run(2, failing)
    assert status != 0
    lines = job.lines("aborted:")
    assert len(lines) == 1, text
    assert "rank 1 aborted the job: ZeroDivisionError: in the data loader" in lines[0]


def elastic():
    import os
    import signal

    import weft

    session = weft.init()
    tensor = session.declare("w", 64, optimizer="sgd")
    weights = np.zeros(64, "float32")
    tensor.init(weights)
    shrunk = 0
    while session.step_next <= 6:
        try:
            with session.step(lr=1.0) as number:
                if number == 3 and session.rank == 2 and session.ranks == 3:
                    os.kill(os.getpid(), signal.SIGKILL)
                tensor.push_pull(np.full(64, 1.0, "float32"), weights).wait()
        except weft.Shrunk:
            shrunk += 1
    assert shrunk == 1 and session.ranks == 2 and (weights == -6).all(), (shrunk, session.ranks, weights[0])
    print("survived")
    session.finalize()


def test_the_survivors_continue(job):
    _, text = job.run(3, elastic, options=["--min-workers", "2"])
    assert len(job.lines("survived")) == 2, text
