"""Training from pairs in model2vec, in an environment of its own.

`python bench/_model2vec.py TEACHER GIVEN.json FOLDER SEED` distils a static model from a teacher,
fits it to pairs and writes vectors of texts, all by model2vec's documented calls at their defaults.
GIVEN.json holds `text_a` and `text_b`, the pairs, and `queries` and `docs`, the texts to judge by.
Vectors are written as `MODEL-SIDE.npy`: those of the distilled model, of the trained static model
(`to_static_model`, which drops the head), and of the trained model with its head. `seconds.json`
holds the CPU seconds of distilling, of training, and of the process until the static model is made.
One model more is trained without a head (`n_layers=0`), with its own seconds; that is no default.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
from model2vec.distill import distill
from model2vec.train import StaticModelForPairSimilarity


def main(teacher: str, given: str, target: str, seed: str) -> None:
    """Train and write the vectors."""
    texts = json.loads(Path(given).read_text(encoding="utf-8"))
    folder = Path(target)
    folder.mkdir(parents=True, exist_ok=True)

    began = time.process_time()
    distilled = distill(teacher)
    made = time.process_time()
    trained = StaticModelForPairSimilarity.from_static_model(model=distilled)
    trained.fit(text_a=texts["text_a"], text_b=texts["text_b"], random_seed=int(seed))
    static = trained.to_static_model()
    ended = time.process_time()

    headless = StaticModelForPairSimilarity.from_static_model(model=distilled, n_layers=0)
    headless.fit(text_a=texts["text_a"], text_b=texts["text_b"], random_seed=int(seed))
    again = time.process_time()

    seconds = {
        "distil": made - began,
        "train": ended - made,
        "whole": ended,
        "whole, without a head": made + again - ended,
    }
    models = {
        "distilled": distilled,
        "static": static,
        "with head": trained,
        "without a head": headless.to_static_model(),
    }
    for name, model in models.items():
        for side in ("queries", "docs"):
            np.save(folder / f"{name}-{side}.npy", model.encode(texts[side]))
    (folder / "seconds.json").write_text(json.dumps(seconds), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
