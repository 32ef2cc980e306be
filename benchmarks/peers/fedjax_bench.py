"""The workload in FedJAX: `for_each_client` with local SGD, clipping and noise in the client's last step."""

from __future__ import annotations

import math
from itertools import pairwise

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
from task import Stopwatch, Task, digits, task


def main() -> None:
    given = task()
    clients, (test_x, test_y) = digits(given)
    datasets = [fedjax.ClientDataset({"x": x, "y": y}) for x, y in clients]
    watch = Stopwatch(given)

    def forward(weights, x):
        convolutions = 0 if given.cnn is None else len(given.cnn.channels)
        if given.cnn is not None:
            x = x.reshape(-1, 28, 28, 1)
            for weight, bias in weights[:convolutions]:
                x = pooled(jax.nn.relu(convolved(x, weight, given.cnn.padding) + bias))
            x = x.reshape(len(x), -1)
        linear = weights[convolutions:]
        for number, (weight, bias) in enumerate(linear):
            x = x @ weight + bias
            x = jax.nn.relu(x) if number < len(linear) - 1 else x
        return x

    def loss(weights, batch, centre):
        scores = jax.nn.log_softmax(forward(weights, batch["x"]))
        fit = -jnp.mean(jnp.take_along_axis(scores, batch["y"][:, None], axis=1))
        far = sum(
            jnp.sum((w - c) ** 2)
            for w, c in zip(jax.tree.leaves(weights), jax.tree.leaves(centre), strict=True)
        )
        return fit + given.mu / 2 * far if given.mu else fit

    def client_init(shared, key):
        return {"weights": shared, "centre": shared, "key": key}

    def client_step(state, batch):
        slope = jax.grad(loss)(state["weights"], batch, state["centre"])
        weights = jax.tree.map(lambda w, g: w - given.lr * g, state["weights"], slope)
        return {**state, "weights": weights}

    def client_final(_, state):
        leaves, shape = jax.tree.flatten(state["weights"])
        norm = jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in leaves))
        factor = 1 / jnp.maximum(1, norm / given.clip)
        keys = jax.random.split(state["key"], len(leaves))
        noisy = [
            leaf * factor + given.sigma * jax.random.normal(k, leaf.shape)
            for k, leaf in zip(keys, leaves, strict=True)
        ]
        return jax.tree.unflatten(shape, noisy)

    train = fedjax.for_each_client(client_init, client_step, client_final)
    accuracy_of = jax.jit(lambda w: jnp.mean(jnp.argmax(forward(w, test_x), axis=1) == test_y))
    rng, weights, accuracy = np.random.default_rng(0), start(given), None
    for number in range(1, given.warm + given.rounds + 1):
        chosen = rng.choice(given.clients, given.per_round, replace=False)
        keys = jax.random.split(jax.random.PRNGKey(number), given.per_round)
        batches = [
            (
                c,
                datasets[c].shuffle_repeat_batch(
                    batch_size=given.batch, num_epochs=None, num_steps=given.steps
                ),
                key,
            )
            for c, key in zip(chosen, keys, strict=True)
        ]
        total = None
        for _, upload in train(weights, batches):
            total = upload if total is None else jax.tree.map(jnp.add, total, upload)
        weights = jax.tree.map(lambda t: t / given.per_round, total)
        if number % given.eval_every == 0:
            accuracy = float(accuracy_of(weights))
        jax.block_until_ready(weights)
        watch.lap()
    watch.report("fedjax", accuracy)


def convolved(x, weight, padding: int):
    """Images with their channels last, as XLA likes them on a CPU."""
    return jax.lax.conv_general_dilated(
        x, weight, (1, 1), [(padding, padding)] * 2, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def pooled(x):
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def start(given: Task) -> list[tuple]:
    """Uniform in +-1/sqrt(inputs), as torch's layers start."""
    shapes = [] if given.cnn is None else [(5, 5, *pair) for pair in pairwise((1, *given.cnn.channels))]
    key, layers = jax.random.PRNGKey(0), []
    for shape in [*shapes, *pairwise(given.widths)]:
        key, one, two = jax.random.split(key, 3)
        bound = math.prod(shape[:-1]) ** -0.5
        weight = jax.random.uniform(one, shape, minval=-bound, maxval=bound)
        layers.append((weight, jax.random.uniform(two, shape[-1:], minval=-bound, maxval=bound)))
    return layers


if __name__ == "__main__":
    main()
