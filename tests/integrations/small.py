"""A tiny model, texts, a trainer; and, as a program, one of several processes that train together.

`torchrun --nproc_per_node 2 small.py FOLDER` leaves what every process has come to in FOLDER.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, DatasetDict, disable_progress_bars
from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from torch import Tensor, nn

from tempera.core import pools, presets
from tempera.core.masks import SameId
from tempera.core.memory import Memory
from tempera.core.temperature import Temperature
from tempera.errors import TemperaError
from tempera.integrations.sentence_transformers import ContrastiveLoss, ObjectiveState
from tempera.towers.transformer import Transformer

disable_progress_bars()
WORDS = ["the", "cat", "sat", "on", "a", "mat", "of", "straw", "and", "gold", "Zürich", "parseDate"]
NAMES = ["anchor", "positive", "negative", "negative_2"]
Columns = dict[str, list[str]]


def texts(rows: int, columns: int = 2, seed: int = 0) -> Columns:
    """Distinct texts of 1 to 14 words."""
    draw = random.Random(seed)
    made: list[str] = []
    while len(made) < rows * columns:
        text = " ".join(draw.choices(WORDS, k=draw.randint(1, 14)))
        made += [] if text in made else [text]
    return {name: made[i * rows : (i + 1) * rows] for i, name in enumerate(NAMES[:columns])}


def tiny(
    dropout: float = 0.0, seed: int = 0, vocabulary: int = 120, dtype: torch.dtype = torch.float64
) -> Any:
    """A transformer of two layers, whose texts are as far apart as after training."""
    torch.manual_seed(seed)
    words = [text for column in texts(40).values() for text in column]
    tower: Any = Transformer(
        layers=2, width=32, heads=2, vocabulary=vocabulary, max_length=24, dropout=dropout
    ).build(words)
    for parameter in tower.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.3)
    return tower.model.to(dtype)


def trainer(
    folder: Path,
    model: Any,
    loss: Any,
    data: Columns,
    callbacks: Sequence[Any] = (),
    **options: Any,
) -> Any:
    """A trainer on the CPU that writes and reports nothing unless asked."""
    given: dict[str, Any] = {
        "max_steps": 4, "per_device_train_batch_size": 6, "learning_rate": 1e-3, "logging_steps": 1, "save_strategy": "no",
        "report_to": [], "disable_tqdm": True, "use_cpu": True, "lr_scheduler_type": "constant", **options,
    }  # fmt: skip
    evaluation = {name: given.pop(name) for name in ("eval_dataset", "evaluator") if name in given}
    return SentenceTransformerTrainer(
        model=model,
        args=SentenceTransformerTrainingArguments(str(folder), **given),
        train_dataset=Dataset.from_dict(data),
        loss=loss,
        callbacks=list(callbacks),
        **evaluation,
    )


def logged(trained: Any, name: str = "loss") -> list[float]:
    return [entry[name] for entry in trained.state.log_history if name in entry]


def weights(model: Any) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


# Several processes
# -----------------------------------------------------------------------------------------------------


def learning(dropout: float = 0.2) -> tuple[Any, ContrastiveLoss]:
    """A loss with a temperature that learns and a memory."""
    model = tiny(dropout, dtype=torch.float32)
    parts: dict[str, Any] = {
        "pools": (pools.docs, pools.negatives, pools.memory),
        "memory": Memory(10),
        "masks": (SameId(),),
    }
    return model, ContrastiveLoss(model, presets.mnr(Temperature(0.05, learnable=True), **parts))


def gathered(
    folder: Path, batch: int, accumulation: int, rows: int, backend: str | None = None
) -> dict[str, Any]:
    """What two epochs come to; with duplicates across processes."""
    model, loss = learning(dropout=0.0)
    data = texts(rows, 3)
    data["positive"][1::5] = [data["positive"][0]] * len(data["positive"][1::5])
    options: dict[str, Any] = {
        "optim": "sgd",
        "learning_rate": 0.05,
        "max_steps": -1,
        "num_train_epochs": 2,
        "ddp_backend": "gloo",
    }
    options |= {
        "ddp_backend": backend,
        "dataloader_drop_last": True,
    }  # as the trainer has it for several processes
    given = {
        "per_device_train_batch_size": batch,
        "gradient_accumulation_steps": accumulation,
        **options,
    }
    trained = trainer(folder, model, loss, data, [ObjectiveState(loss)], **given)
    trained.train()
    return {
        **weights(model),
        "temperature": loss.temperature,
        "loss": logged(trained),
        **loss.objective.state_dict(),
    }


def apart(folder: Path, make: Callable[[Any], Any]) -> dict[str, Tensor]:
    """What two data sets come to, of which each process has another one in a step."""
    model = tiny(dtype=torch.float32)
    data = DatasetDict(
        {name: Dataset.from_dict(texts(24, 3, seed)) for seed, name in enumerate("ab")}
    )
    args = SentenceTransformerTrainingArguments(
        str(folder), optim="sgd", learning_rate=0.05, per_device_train_batch_size=4, gradient_accumulation_steps=2, use_cpu=True,
        max_steps=3, save_strategy="no", report_to=[], disable_tqdm=True, ddp_backend="gloo",
    )  # fmt: skip
    SentenceTransformerTrainer(model, args, data, loss=make(model)).train()
    return weights(model)


def refused(folder: Path) -> str:
    """What is said where each process has another loss in a step."""
    try:
        apart(folder, lambda model: {name: ContrastiveLoss(model) for name in "ab"})
    except TemperaError as error:
        return str(error)
    return "nothing"


def alone(model: Any) -> nn.Module:
    """A loss without the other processes' negatives."""
    return ContrastiveLoss(
        model, gather_across_devices=False, cache="always", micro_batch_tokens=40
    )


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    found = {
        "gathered": gathered(folder, 4, 1, 22, "gloo"),
        "accumulated": gathered(folder, 2, 2, 24, "gloo"),
        "peers": apart(folder, MultipleNegativesRankingLoss),
        "ours": apart(folder, alone),
        "refused": refused(folder),
    }
    torch.save(found, folder / f"{torch.distributed.get_rank()}.pt")
