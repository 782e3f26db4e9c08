"""sentence-transformers' documented recipe from NLI to STS, in a process of its own.

`python bench/_sts.py MODEL TRIPLETS.parquet FOLDER SEED` trains as
`examples/sentence_transformer/training/nli/training_nli_v2.py` of the library does: its trainer,
MultipleNegativesRankingLoss, batches of 128 without duplicates, one epoch, a tenth of it to warm
up, and otherwise its defaults. Half precision, which needs a GPU, is left out, and so are
evaluations on the way. FOLDER receives the model; `seconds.json` in it holds CPU seconds of the
process and the number of steps.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pyarrow.parquet as parquet
from datasets import Dataset, disable_progress_bars
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.training_args import BatchSamplers

BATCH = 128


def main(model_folder: str, triplets: str, target: str, seed: str) -> None:
    """Train and save."""
    disable_progress_bars()
    model = SentenceTransformer(model_folder, device="cpu")
    arguments = SentenceTransformerTrainingArguments(
        output_dir=target,
        num_train_epochs=1,
        per_device_train_batch_size=BATCH,
        warmup_steps=0.1,
        batch_sampler=BatchSamplers.NO_DUPLICATES,
        seed=int(seed),
        use_cpu=True,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = SentenceTransformerTrainer(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_dict(parquet.read_table(triplets).to_pydict()),
        loss=MultipleNegativesRankingLoss(model),
    )
    trainer.train()
    model.save(target)
    figures = {"CPU seconds": time.process_time(), "steps": trainer.state.global_step}
    (Path(target) / "seconds.json").write_text(json.dumps(figures), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
