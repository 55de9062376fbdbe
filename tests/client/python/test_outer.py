"""Outer steps from Python: the mean of local weights, a checkpoint, and what is refused."""

import forks as fork_server
import pytest

np = pytest.importorskip("numpy")


def mean_of_weights():
    import weft

    with weft.init() as session:
        weights = {"a": np.full((4, 8), 1.0 + session.rank, "float32"), "b": np.zeros(5, "float32")}
        outer = session.outer_steps(weights.items(), every=2, codec="dense", optimizer="sgd", lr=1.0)
        assert (weights["a"] == 1).all()  # rank 0's
        for step in (1, 2):
            weights["a"] += session.rank + 1
            weights["b"] -= step
            outer.step()
        assert (weights["a"] == 1 + 2 * 1.5).all() and (weights["b"] == -3).all()
        state = outer.state()
        outer.free()

        again = session.outer_steps(weights.items(), every=2, codec="dense", optimizer="sgd", lr=1.0, saved=state)
        weights["b"] += session.rank
        again.sync()
        assert (weights["b"] == -2.5).all()
        try:
            session.outer_steps(weights.items(), every=3, saved=state)
        except (weft.Malformed, weft.AlreadyExists) as error:
            assert "outer" in str(error)
        else:
            raise AssertionError("a state with another period was taken")
        try:
            session.outer_steps([("c", np.zeros(3))])
        except weft.Unsupported as error:
            assert "f32" in str(error)
        else:
            raise AssertionError("f64 weights were taken")
        again.free()


def test_mean_of_weights(job):
    job(2, mean_of_weights)


def test_gpt_with_outer_steps(tmp_path, request):
    """The example trains, sends less than gradients of each step would be, and continues from its file."""
    pytest.importorskip("torch")
    import jobs

    forks = fork_server.Server()  # one that has torch
    request.addfinalizer(forks.close)
    text = tmp_path / "text"
    text.write_bytes(b"".join(path.read_bytes() for path in sorted((jobs.ROOT / "docs").glob("*.md"))))
    small = [jobs.ROOT / "examples/python/gpt.py", "--text", text, "--layers", "1", "--width", "32", "--length", "32", "--steps", "24"]

    def run(*more):
        made = jobs.run(tmp_path / "logs", 2, *small, *more, timeout=240, forks=forks)
        assert made.status == 0, made.text()
        lines = made.logs["rank0.log"].splitlines()
        return float(lines[-1].split()[-1]), float(lines[-2].split(",")[1].split()[0])

    outer = ["--outer", "12", "--fragments", "2", "--overlap", "1", "--checkpoint", tmp_path / "outer.pt"]
    first, megabytes = run(*outer)
    gradients = 24 * 4e-6 * (256 * 32 + 32 * 32 + 12 * 32 * 32)  # of one exchange per step, without biases
    assert megabytes < gradients / 5 and first < 5.7
    assert run(*outer)[0] < first
