"""Tensors and steps: optimiser, codecs, checkpoints, skipped steps."""

import pytest

np = pytest.importorskip("numpy")


def momentum(mode):
    import weft

    with weft.init() as session:
        tensor = session.declare("w", (8, 16), mode=mode, optimizer="sgd:momentum=0.9")
        weights = np.arange(128, dtype="float32").reshape(8, 16) if session.rank == 0 else np.zeros((8, 16), "float32")
        tensor.init(weights)
        expected, velocity = np.arange(128, dtype="float32").reshape(8, 16), 0
        for number in range(1, 6):
            gradient = np.full((8, 16), number + session.rank, "float32")
            with session.step(lr=0.5) as step:
                assert step == number
                assert tensor.push_pull(gradient, weights).wait() is weights
            velocity = np.float32(0.9) * velocity + np.float32(number + (session.ranks - 1) / 2)
            expected = expected - np.float32(0.5) * velocity
            assert np.allclose(weights, expected, rtol=1e-6, atol=1e-5), (weights - expected).max()
        assert session.step_next == 6
        assert tensor.choice()["codec"] == "dense"


@pytest.mark.parametrize("shards", [0, 2])
def test_optimizer_equals_numpy(job, shards):
    job(2, momentum, "server" if shards else "all_reduce", options=["-s", str(shards)] if shards else [])


def sixteen_bits():
    import weft

    with weft.init() as session:
        half = session.declare("half", 100, "f16", mode="server", optimizer="sgd")
        rounded = session.declare("rounded", 100, mode="server", optimizer="sgd", pull_dtype="bf16")
        weights, wide = np.ones(100, "float16"), np.ones(100, "float32")
        half.init(weights)
        rounded.init(wide)
        for _ in range(64):
            with session.step(lr=2.0**-14, loss_scale=1024.0):
                half.push_pull(np.full(100, 1024, "float16"), weights)
                rounded.push_pull(np.full(100, 1024, "float32"), wide)
        # 64 updates of 2^-14, each below a unit of both dtypes
        assert np.all(weights == np.float16(1 - 2.0**-8)) and np.all(wide == np.float32(1 - 2.0**-8)), (weights, wide)
        with pytest.raises(weft.Unsupported, match="shards exchange bf16 with dense tensors"):
            session.declare("coded", 100, mode="server", codec="int8", pull_dtype="bf16")


def test_sixteen_bits_through_shards(job):
    job(2, sixteen_bits, options=["-s", "2"])


def asynchronous(consistency):
    import weft

    with weft.init() as session:
        tensor = session.declare("w", 64, optimizer="sgd", consistency=consistency)
        weights = np.zeros(64, "float32")
        tensor.init(weights)
        if session.rank == 0:
            session.barrier().wait()  # rank 1 has made all its steps
        for number in range(1, 6):
            with session.step(lr=0.5):
                tensor.push_pull(np.full(64, 2, "float32"), weights).wait()
            assert np.all(weights == -0.5 * (number if session.rank else number + 5)), weights
        if session.rank == 1:
            session.barrier().wait()


def test_a_rank_trains_without_the_slower_one(job):
    job(2, asynchronous, "asp", options=["-s", "2"])
    job(2, asynchronous, "ssp:5", options=["-s", "2"])


def late():
    import weft

    with weft.init() as session:
        tensor = session.declare("w", 64, optimizer="sgd")
        weights = np.ones(64, "float32")
        tensor.init(weights)
        for number in range(1, 4):
            tensor.wait()
            assert np.allclose(weights, 1 - 0.5 * 1.5 * (number - 1))
            with session.step(lr=0.5, deliver_late=True):
                request = tensor.push_pull(np.full(64, 1 + session.rank, "float32"), weights)
        session.step_wait()
        assert request.wait() is weights and np.allclose(weights, 1 - 0.5 * 1.5 * 3)
        stats = tensor.stats()
        assert stats["operations"] == 3 and stats["ready_ns"] <= stats["started_ns"] <= stats["done_ns"]


def test_results_after_the_step(job):
    job(2, late)


def checkpoint(folder, stop, first):
    import pathlib

    import weft

    folder = pathlib.Path(folder)
    with weft.init() as session:
        tensor = session.declare("w", 256, codec="topk:ratio=0.1", optimizer="adam")
        weights = np.load(folder / "weights.npy") if first > 1 else np.ones(256, "float32")
        tensor.init(weights)
        if first > 1:
            tensor.load_residual((folder / f"residual{session.rank}").read_bytes())
            tensor.load_state((folder / "state").read_bytes() if session.rank == 0 else None)
            assert session.step_next == first
        for number in range(first, stop):
            gradient = np.random.default_rng(number * 10 + session.rank).standard_normal(256).astype("float32")
            with session.step(lr=0.1):
                tensor.push_pull(gradient, weights)
        (folder / f"residual{session.rank}").write_bytes(tensor.residual())
        if session.rank == 0:
            np.save(folder / "weights.npy", weights)
            (folder / "state").write_bytes(tensor.state())
            np.save(folder / f"last{first}.npy", weights)
        session.barrier().wait()
        try:
            tensor.load_residual(b"\0" * len(tensor.residual()))
        except weft.Malformed:
            pass
        else:
            raise AssertionError("a damaged residual was taken")


def test_checkpoint_continues_bit_for_bit(job, tmp_path):
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    whole.mkdir()
    halves.mkdir()
    job(2, checkpoint, str(whole), 7, 1)
    job(2, checkpoint, str(halves), 4, 1)
    job(2, checkpoint, str(halves), 7, 4)
    assert (np.load(whole / "last1.npy") == np.load(halves / "last4.npy")).all()


def snapshotted(folder, restored):
    import pathlib
    import time

    import weft

    folder = pathlib.Path(folder)
    with weft.init() as session:
        tensor = session.declare("w", 256, codec="topk:ratio=0.1", optimizer="adam", mode="server")
        weights, masters = np.ones(256, "float32"), {}
        tensor.init(weights)
        blob = f"rank {session.rank}".encode()
        assert session.restored_blob(7) is None
        assert session.restored_blob() == ((restored, blob) if restored else None)
        assert session.restored_blob(1) == ((restored, b"rank 1") if restored else None)
        assert session.step_next == restored + 1
        session.snapshot_blob(np.frombuffer(blob, "uint16"))  # bytes count, not elements
        left = 2 if restored else -1  # steps; below 0: until a snapshot is there, and two more
        while left != 0:
            number = session.step_next
            gradient = np.random.default_rng(number * 10 + session.rank).standard_normal(256).astype("float32")
            with session.step(lr=0.1):
                tensor.push_pull(gradient, weights)
            masters[str(number)] = weights.copy()
            time.sleep(0.005)
            found = np.array([len(list(folder.glob("snap-*.json")))], "int32")
            session.all_reduce(found, op="min").wait()
            left = left - 1 if left > 0 else 2 if found[0] > 0 else -1
        if session.rank == 0:
            np.savez(folder / f"masters{restored}.npz", **masters)


def test_snapshot_continues_bit_for_bit(job, tmp_path):
    job(2, snapshotted, str(tmp_path), 0, options=["-s", "1"],
        env={"WEFT_SNAPSHOT_FOLDER": str(tmp_path), "WEFT_SNAPSHOT_EVERY": "2 steps", "WEFT_SNAPSHOT_KEEP": "1000"})  # fmt: skip
    step = min(int(path.stem.split("-")[1]) for path in tmp_path.glob("snap-*.json"))
    job(2, snapshotted, str(tmp_path), step, options=["-s", "1"], env={"WEFT_SNAPSHOT_RESTORE": f"{tmp_path}:{step}"})
    whole, again = np.load(tmp_path / "masters0.npz"), np.load(tmp_path / f"masters{step}.npz")
    assert sorted(again) == sorted([str(step + 1), str(step + 2)])
    for number in again:
        assert (whole[number] == again[number]).all(), number


def skipped():
    import weft

    with weft.init() as session:
        tensor = session.declare("w", 64, codec="bf16", optimizer="sgd")
        other = session.declare("unused", 4, optimizer="sgd")
        weights, unused = np.ones(64, "float32"), np.ones(4, "float32")
        tensor.init(weights)
        other.init(unused)
        gradient = np.ones(64, "float32")
        if session.rank == 1:
            gradient[5] = np.inf
        try:
            with session.step(lr=0.1):
                tensor.push_pull(gradient, weights)
                other.push_none()
        except weft.StepSkipped as error:
            assert "rank 1" in str(error) and "'w'" in str(error).replace('"', "'"), error
        else:
            raise AssertionError("the step was taken")
        assert (weights == 1).all()
        with session.step(lr=0.5):
            tensor.push_pull(np.ones(64, "float32"), weights)
            other.push_none()
        assert (weights == 0.5).all() and (unused == 1).all()
        try:
            tensor.push_pull(np.ones(64, "float32"), weights)
        except weft.WrongState:
            pass
        else:
            raise AssertionError("a push outside a step was taken")
        with session.step(lr=0.5):
            tensor.push_pull(np.ones(64, "float32"), weights)
            other.push_none()
            try:
                other.push_pull(np.ones(63, "float32"), unused)
            except weft.InvalidArgument as error:
                assert "has 4 elements of f32; the array has 63" in str(error)
            else:
                raise AssertionError("a long gradient was taken")


def test_skipped_steps_and_refusals(job):
    job(2, skipped)


def reordered():
    import weft

    with weft.init() as session:
        a = session.declare("a", 8, priority=-1)
        b = session.declare("b", 8, alone=True)
        with session.step():
            requests = {tensor: tensor.push_pull(np.full(8, value, "float32"))
                        for tensor, value in ([(a, 1), (b, 5)] if session.rank == 0 else [(b, 7), (a, 3)])}  # fmt: skip
            assert (requests[a].wait() == 2).all() and (requests[b].wait() == 6).all()


def test_orders_that_differ_are_served(job):
    job(2, reordered)


def different():
    import weft

    session = weft.init()
    a, b = session.declare("a", 8), session.declare("b", 8)
    try:
        with session.step():
            (a if session.rank == 0 else b).push_pull(np.ones(8, "float32"))
    except weft.Mismatch as error:
        print("mismatch:", error)
        return
    finally:
        session.finalize()
    raise AssertionError("different tensors were taken")


def test_tensors_that_differ_are_named(job):
    text = job(2, different)
    assert "mismatch:" in text and "'a'" in text.replace('"', "'") and "'b'" in text.replace('"', "'")


def pushed_and_pulled():
    import weft

    with weft.init() as session:
        tensor = session.declare("w", 32, mode="server")
        tensor.init(np.zeros(32, "float32"))
        out = np.empty(32, "float32")
        with session.step():
            tensor.push(np.full(32, session.rank + 1.0, "float32")).wait()
            tensor.pull(out).wait()
        assert (out == (session.ranks + 1) / 2).all()
        tensor.free()


def test_push_and_pull(job):
    job(2, pushed_and_pulled, options=["-s", "1"])
