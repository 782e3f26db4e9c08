"""HSTU of RecTools on each user's last item, in a process and an environment of its own.

`python bench/_rectools.py EVENTS.npy RANKS.npy SEED time` tells it the times, `order` in place of
`time` does not. The settings are those of RecTools' HSTU tutorial (two blocks), which ends by the
recall of validation. EVENTS is an array of users, items and times, [3, e], user after user, the
latest last. RANKS holds the place of each user's last item, from 1, among all items that the user
has not taken; 0 is below place 10. Only RecTools and what it needs is loaded.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import time
import warnings
from typing import Any

import numpy as np
import pandas as pd
import torch
from lightning_fabric import seed_everything
from pytorch_lightning import Trainer
from pytorch_lightning.callbacks import Callback, EarlyStopping
from rectools import Columns
from rectools.dataset import Dataset
from rectools.dataset.context import get_context
from rectools.models import HSTUModel
from rectools.models.nn.item_net import IdEmbeddingsItemNet
from rectools.models.nn.transformers.utils import leave_one_out_mask

K = 10


class Best(Callback):
    """Measure recall@10 of the validation items after each epoch, and end with the weights of the
    best."""

    def __init__(self) -> None:
        self.hits: list[torch.Tensor] = []
        self.best, self.weights = -1.0, {}

    def on_validation_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, *_: Any
    ) -> None:
        """Rank the items that a session does not hold."""
        model = module.torch_model
        scores = outputs.get("logits")
        if scores is None:
            scores = model.similarity_module(
                model.encode_sessions(batch, module.item_embs)[:, -1, :], module.item_embs
            )
        scores = scores.scatter(1, batch["x"], -torch.inf)  # 0, which pads, is no item either
        self.hits.append((scores.topk(K).indices == batch["y"][:, :1]).any(1))

    def on_validation_epoch_end(self, trainer: Any, module: Any) -> None:
        """Keep the weights if they are the best."""
        recall, self.hits = float(torch.cat(self.hits).float().mean()), []
        module.log("recall@10", recall)
        if recall > self.best and not trainer.sanity_checking:
            self.best = recall
            self.weights = {
                name: value.clone() for name, value in module.torch_model.state_dict().items()
            }

    def on_fit_end(self, trainer: Any, module: Any) -> None:
        """Take the best weights."""
        module.torch_model.load_state_dict(self.weights)


def trainer(folder: str, best: Best) -> Trainer:
    """Return the tutorial's trainer, on the CPU."""
    stop = EarlyStopping(monitor="recall@10", mode="max", patience=5, divergence_threshold=0.01)
    quiet = {
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "logger": False,
        "enable_checkpointing": False,
    }
    return Trainer(
        accelerator="cpu", devices=1, min_epochs=10, max_epochs=100, deterministic=True, callbacks=[best, stop],
        default_root_dir=folder, **quiet,
    )  # fmt: skip


def main() -> None:
    """Train and rank."""
    path, out, seed, mode = sys.argv[1:]
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    warnings.simplefilter("ignore")
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    seed_everything(int(seed), workers=True, verbose=False)
    frame = pd.DataFrame(
        dict(zip((Columns.User, Columns.Item, Columns.Datetime), np.load(path), strict=True))
    )
    frame[Columns.Datetime] = pd.to_datetime(frame[Columns.Datetime], unit="s")
    frame[Columns.Weight] = 1
    test = frame.groupby(Columns.User, sort=False).tail(1)
    start = time.process_time()
    best = Best()
    with tempfile.TemporaryDirectory() as folder:
        model = HSTUModel(
            relative_time_attention=mode == "time", relative_pos_attention=True, session_max_len=200,
            lightning_module_kwargs={"logits_t": 0.05}, item_net_block_types=(IdEmbeddingsItemNet,),
            get_val_mask_func=leave_one_out_mask, get_trainer_func=lambda: trainer(folder, best), verbose=0,
            loss="sampled_softmax", n_negatives=128, use_pos_emb=True, dropout_rate=0.2, n_factors=50, n_heads=1,
            n_blocks=2, lr=0.001, batch_size=128,
        )  # fmt: skip
        dataset = Dataset.construct(frame.drop(test.index))
        model.fit(dataset)
        epochs = model.fit_trainer.current_epoch
        context = get_context(test[[Columns.User, Columns.Datetime]]) if mode == "time" else None
        lists = model.recommend(
            test[Columns.User].to_numpy(), dataset, K, filter_viewed=True, context=context
        )
    found = test[[Columns.User, Columns.Item]].merge(lists, "left", on=[Columns.User, Columns.Item])
    np.save(
        out,
        found.set_index(Columns.User)
        .loc[test[Columns.User], Columns.Rank]
        .fillna(0)
        .to_numpy(np.int64),
    )
    print(f"epochs {epochs} validation {best.best:.4f} seconds {time.process_time() - start:.1f}")


if __name__ == "__main__":
    main()
