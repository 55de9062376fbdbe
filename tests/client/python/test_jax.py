"""weft.jax: two ranks train as one rank with the whole batch."""

import pytest

np = pytest.importorskip("numpy")
jax = pytest.importorskip("jax")


def parameters_of(seed):
    random = np.random.default_rng(seed)
    return {"w": random.standard_normal((8, 16)).astype("float32"), "v": random.standard_normal((16,)).astype("float32")}


def batch(number):
    random = np.random.default_rng(100 + number)
    return random.standard_normal((12, 8)).astype("float32"), random.standard_normal(12).astype("float32")


def loss_of(parameters, rows):
    inputs, targets = rows
    return ((jax.numpy.tanh(inputs @ parameters["w"]) @ parameters["v"] - targets) ** 2).mean()


def descend(parameters, gradients):
    return jax.tree.map(lambda parameter, gradient: parameter - 0.1 * gradient, parameters, gradients)


def alone(steps):
    parameters = parameters_of(0)
    for number in range(steps):
        parameters = descend(parameters, jax.grad(loss_of)(parameters, batch(number)))
    return parameters


def trained(shards):
    import weft
    import weft.jax

    with weft.init() as session:
        expected = alone(5)
        first = weft.jax.broadcast(parameters_of(session.rank))
        exchange = weft.jax.PushPull(first)

        def reduced(gradients):
            return weft.jax.all_reduce(gradients, op="avg")

        for average in (reduced, exchange):

            @jax.jit
            def step(parameters, rows):
                loss, gradients = jax.value_and_grad(loss_of)(parameters, rows)
                return descend(parameters, average(gradients)), weft.jax.all_reduce(loss, op="avg")

            parameters = first
            for number in range(5):
                rows = tuple(part[session.rank :: session.ranks] for part in batch(number))
                parameters, loss = step(parameters, rows)
            jax.block_until_ready(parameters)
            for name, value in parameters.items():
                assert abs(value - expected[name]).max() < 1e-5, name
            assert np.isfinite(loss)

        def total(parameters):
            return weft.jax.all_reduce(loss_of(parameters, rows), op="avg")

        slope = jax.grad(total)(parameters)
        local = jax.grad(loss_of)(parameters, rows)
        for name in local:
            mean = session.all_reduce(np.array(local[name]), op="avg").wait()
            # every rank's loss holds every rank's parameters' share once
            assert np.allclose(np.asarray(slope[name]), np.asarray(local[name]), atol=1e-5), (name, mean)
        assert int(weft.jax.all_reduce(session.rank, op="max")) == session.ranks - 1
        exchange.close()


@pytest.mark.parametrize("shards", [0, 1])
def test_two_ranks_train_as_one(job, shards):
    job(2, trained, shards, options=["-s", "1"] if shards else [], env={"JAX_PLATFORMS": "cpu"}, forks=None)
