"""The same model in TensorFlow Recommenders, in a separate process and environment: `python
bench/_tfrs.py DATA.npz`.

Each line on its standard input asks for a measurement (`train STEPS`, `fit STEPS`, `streaming`,
`brute`), and is answered by one with the CPU seconds that it took. Only numpy, TensorFlow and
TensorFlow Recommenders are loaded.
"""

from __future__ import annotations

import os

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_recommenders as tfrs

tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)


class Mean(tf.keras.Model):
    """The mean of the vectors of several codes; code 0 is padding."""

    def __init__(self, codes: int, width: int) -> None:
        super().__init__()
        self.table = tf.keras.layers.Embedding(codes, width)

    def call(self, codes: Any) -> Any:
        there = tf.cast(codes > 0, tf.float32)[..., None]
        return tf.reduce_sum(self.table(codes) * there, 1) / tf.maximum(
            tf.reduce_sum(there, 1), 1.0
        )


def network() -> Any:
    return tf.keras.Sequential([tf.keras.layers.Dense(128, "relu"), tf.keras.layers.Dense(64)])


class Retrieval(tfrs.Model):
    """User id 32 beside the mean of the last 50 items 64, against item id 64 beside genres 16; each
    to 128, ReLU, 64."""

    def __init__(self, data: Any, temperature: float) -> None:
        super().__init__()
        users, items = int(data["users"]), len(data["genres"])
        self.user, self.past = tf.keras.layers.Embedding(users, 32), Mean(items + 1, 64)
        self.item, self.genre = (
            tf.keras.layers.Embedding(items, 64),
            Mean(int(data["genres"].max()) + 1, 16),
        )
        self.of_user, self.of_item = network(), network()
        self.genres, self.chance = tf.constant(data["genres"]), tf.constant(data["chance"])
        self.task = tfrs.tasks.Retrieval(temperature=temperature)

    def compute_loss(self, rows: Any, training: bool = False) -> Any:
        user, history, item = rows
        query = self.of_user(tf.concat([self.user(user), self.past(history)], 1))
        doc = self.of_item(
            tf.concat([self.item(item), self.genre(tf.gather(self.genres, item))], 1)
        )
        query, doc = tf.math.l2_normalize(query, 1), tf.math.l2_normalize(doc, 1)
        chance = tf.gather(self.chance, item)
        return self.task(query, doc, candidate_sampling_probability=chance, compute_metrics=False)


def model_of(data: Any) -> Any:
    model = Retrieval(data, float(data["temperature"]))
    model.compile(optimizer=tf.keras.optimizers.Adam(1e-3))
    return model


def training(data: Any) -> Callable[[int], None]:
    """Run steps on batches that are sliced from padded arrays, the fastest of several ways to feed
    them."""
    model, batch = model_of(data), int(data["batch"])
    step = tf.function(model.train_step)
    user, history, item = data["user"], data["history"], data["item"]
    generator = np.random.default_rng(0)

    def run(steps: int) -> None:
        order = generator.permutation(len(item))
        for i in range(steps):
            rows = order[i * batch : (i + 1) * batch]
            step((tf.constant(user[rows]), tf.constant(history[rows]), tf.constant(item[rows])))

    return run


def fitting(data: Any) -> Callable[[int], None]:
    """Run the steps as in the tutorials: tf.data shuffles and batches rows for `model.fit`."""
    model, batch = model_of(data), int(data["batch"])
    rows = tf.data.Dataset.from_tensor_slices(
        tuple(data[name] for name in ("user", "history", "item"))
    )
    batches = rows.shuffle(10 * batch).batch(batch, drop_remainder=True)
    return lambda steps: model.fit(batches.take(steps), epochs=1, verbose=0)


def evaluation(data: Any, batch: int, brute: bool) -> Callable[[], None]:
    """Run FactorizedTopK over computed vectors: streamed as in the tutorials, or by the BruteForce
    layer."""
    queries, items, target = (data[name] for name in ("queries", "items", "target"))
    if brute:
        candidates = tfrs.layers.factorized_top_k.BruteForce().index(items)
    else:
        candidates = tf.data.Dataset.from_tensor_slices(items).batch(128)
    metric = tfrs.metrics.FactorizedTopK(candidates, ks=(1, 5, 10, 50, 100))

    @tf.function
    def update(query: Any, doc: Any) -> None:
        metric.update_state(query, doc)

    def run() -> None:
        metric.reset_states()
        for start in range(0, len(queries), batch):
            rows = slice(start, start + batch)
            update(tf.constant(queries[rows]), tf.constant(items[target[rows]]))

    return run


def main() -> None:
    with np.load(sys.argv[1]) as arrays:
        data = dict(arrays)
    batch = int(data["batch"])
    asked: dict[str, Callable[..., None]] = {
        "train": training(data),
        "fit": fitting(data),
        "streaming": evaluation(data, batch, brute=False),
        "brute": evaluation(data, batch, brute=True),
    }
    for line in sys.stdin:
        name, *arguments = line.split()
        start = time.process_time()
        asked[name](*map(int, arguments))
        print(time.process_time() - start, flush=True)


if __name__ == "__main__":
    main()
