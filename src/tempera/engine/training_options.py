"""The options of training, and the refused combinations."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from pydantic import Field

from ..arithmetic.abilities import missing
from ..core.tiles import LossPass, tile_losses
from ..errors import ConfigError
from ..io.console import logger
from ..parallel.shards import ONE_PROCESS
from .cache import Cache, Mode, Size
from .clock import Seconds
from .curation import By
from .devices import Devices, Wanted, bf16_gain, named
from .fused import MANY, Fused, Kernel, Reach, parts_of
from .optim import ForTables, Schedule

RefitOn = Literal["none", "validation", "all", "auto"]
# Options of the machine: results are equal up to rounding.
OF_A_MACHINE = ("device", "kernel", "cache", "cache_memory", "micro_batch_tokens")


@dataclass(frozen=True)
class Training:
    """Options of training: its length, learning rates, batches, memory and checkpoints. Names
    follow Hugging Face where possible.

    Args:
        batch_size: largest number of pairs in one softmax, over all devices; an epoch's batches
            differ by one pair at most. "auto" follows the tower and the number of training pairs.
        batch_sampler: "shuffled", or "no_duplicates" for batches without a repeated text; masks
            handle repeated texts otherwise.
        num_train_epochs: number of passes over the training pairs; "auto" follows the tower and the
            number of pairs.
        max_steps: number of optimiser steps to stop after; None follows num_train_epochs.
        max_time: largest time of the optimiser steps: seconds, or a text as 60s, 5min or 1h. Before
            the first step, the rate of a few steps, measured and undone, turns the time into a
            number of steps, on which the learning rate then depends; a race is limited likewise,
            and the rate is measured again if another tower wins. Training again is counted;
            reading, the race, evaluation and saving are not. None is no limit.
        made_rows: number of rows beside each pair of texts, in the first steps, made of documents:
            a random span of a text's tokens asks for the remaining tokens (15 % of the steps,
            batches of at most 2,048 rows), or the name or the comments of a Python function without
            a docstring ask for the code (28 %, 4,096). "auto" is 4 for a static tower on more than
            20,000 pairs of Python files, or on 1,000 pairs or more whose median document has at
            least 64 tokens; else 0.
        max_pairs: largest number of training pairs of texts, drawn by `evaluation.seed` after the
            split, so that a larger number holds all pairs of a smaller number; None trains on all
            pairs. The left-out pairs count as unknown: the documents may be negatives of the
            queries.
        learning_rate: peak learning rate of AdamW. The default depends on the tower: 0.003 static,
            5e-4 for a transformer from scratch, 5e-5 pretrained, 2e-4 with LoRA.
        temperature_learning_rate: peak learning rate of a learnable temperature's logarithm.
        table_optimizer: optimiser of the embedding tables of ids, categories and words. "adamw"
            updates all rows in every step and keeps two numbers per weight; "rowwise_adagrad"
            updates the rows of a batch and keeps one number per row.
        table_learning_rate: peak learning rate of the tables; None is learning_rate with adamw, and
            0.05 with rowwise_adagrad.
        warmup_ratio: share of the steps in which the learning rate rises.
        lr_scheduler_type: schedule of the learning rate after the warmup.
        weight_decay: weight decay of AdamW, on everything but the temperature; row-wise Adagrad has
            none.
        max_grad_norm: norm to which larger gradients are clipped; None does not clip.
        sampled: number of training documents to sample for each batch, for the pool `sampled`.
        sampled_power: samples documents by their frequency to this power; 0 is uniform, 1 by
            frequency.
        gradient_accumulation_steps: number of batches whose gradients are averaged into one
            optimiser step. Each batch has its own softmax, so accumulation adds no negatives; a
            larger batch_size does, whatever the memory.
        cache: gradient caching. "auto" embeds rows beyond `cache_memory` twice, "always" all rows,
            "never" no row.
        cache_memory: memory for the towers' graphs: bytes (also as "2GiB"), or, up to 1, a share of
            the free memory; None is 4 GiB on a CPU and 0.8 of the free memory on a GPU.
        select: share of each batch's rows to learn from, chosen by a guide (see `guide`) before the
            step; the remaining rows are left out of the batch, as negatives too. 1 learns from all
            rows.
        select_by: "guide" takes the pairs with the lowest loss by the guide's vectors, so that
            wrong pairs are left out; "learnability" takes the pairs with the largest excess of the
            model's loss over the guide's loss, and embeds every batch once more.
        micro_batch_tokens: largest number of tokens, with padding, that a tower embeds at once;
            None is as many as fit 256 MiB of graph on a CPU, and 1/8 of `cache_memory` on a GPU.
        mixed_precision: precision of the towers: no, bf16 or fp16; logits, norms and softmax are
            always float32. auto is bf16 where the device multiplies bf16 at least 1.5 times as
            fast, by a short measurement; on a CPU texts are read in bf16, too. The default is auto
            for a pretrained transformer, and no for other towers.
        device: device of the towers: "auto" is the accelerator that torch finds (cuda, xpu, mps),
            or else "cpu"; or a name, as cuda:1.
        kernel: kernel of the loss stage. "torch" computes in tiles on every device; "triton" by
            fused kernels on CUDA, if they can compute the objective's parts, in half precision if
            mixed_precision is bf16 or fp16; else the log says why not. "auto" takes the fused
            kernels where measurements have shown a gain: from 8,192 pairs on, on NVIDIA's H100 and
            H200.
        fsdp: shard the weights and gradients of the towers and the optimiser's moments over the
            processes (FSDP2), for towers that do not fit one device. The first process evaluates
            and saves a whole copy.
        divide_tables: divide embedding tables of 1,024 rows or more by rows over the processes,
            with their gradients and the optimiser's accumulators, for ids and categories that one
            process cannot hold. The first process evaluates and saves whole tables.
        guide: folder of a saved model, or of a run, whose vectors the mask `guided` and `select`
            compare by; the vectors are cached in vectors/ beside the run, by model and content, so
            each distinct text is embedded once. A folder of `tempera encode` stands for its model,
            with the vectors of all texts that it holds.
        teacher: folder of a saved model, of a run, or of `tempera encode`, from whose vectors the
            model learns by `objective.teacher`, or by its defaults; they are read and cached as the
            guide's.
        ddp_timeout: seconds that a process waits for other processes before it gives up. The first
            process evaluates and writes alone while other processes wait.
        seed: random seed of the initial weights and the order of the rows; `evaluation.seed`
            chooses the held-out queries.
        evaluations: number of evaluations on the validation set during training, evenly spread over
            the steps.
        report_to: trackers to send the metrics of log.jsonl to: tensorboard, wandb, mlflow, trackio
            (by Accelerate). The files are in OUTPUT.trackers. Sweeps and tunings send nothing, and
            write tables of their own.
        keep_best: save the weights of the best validation; the untrained model is a candidate. If
            the option is false, or the validation set has too few queries to choose by, the weights
            of the last step are saved.
        refit: held-out data to train on again, from new weights and for as many passes as
            validation has chosen. "validation" adds the validation data before the test is
            evaluated. "all" does the same, and then adds the test data for the saved model; the
            reported figures are of the evaluated model, in `evaluated/`. "none" saves the weights
            that validation has chosen. "auto" trains again if more than a twentieth of the data is
            held out: as "all" for interactions; for texts once after the evaluation, on everything
            but a test or validation that the user has named. With rows made of documents
            (`made_rows`), or negatives mined during training (`mining.again`), "auto" goes on from
            the weights that validation has chosen: for half as many steps, or a quarter with both,
            at half of the learning rate, without made rows.
        patience: number of evaluations without improvement after which training stops early; None
            takes every step. A validation set of at least 50 queries or events is needed.
        save_steps: number of steps between checkpoints; None writes a checkpoint every ten minutes.
            Checkpoints stay in OUTPUT.checkpoints, beside the run, until the run has ended.
        save_total_limit: number of the latest checkpoints to keep.
        skip_non_finite: largest number of consecutive steps to skip because their loss or a
            gradient is not finite; one step more ends the run.
    """

    batch_size: Annotated[int, Field(gt=1)] | Literal["auto"] = "auto"
    batch_sampler: Literal["shuffled", "no_duplicates"] = "shuffled"
    num_train_epochs: Annotated[float, Field(gt=0)] | Literal["auto"] = "auto"
    max_steps: Annotated[int, Field(gt=0)] | None = None
    max_time: Seconds | None = None
    made_rows: Annotated[int, Field(ge=0)] | Literal["auto"] = "auto"
    max_pairs: Annotated[int, Field(gt=1)] | None = None
    learning_rate: Annotated[float, Field(gt=0)] = 0.03
    temperature_learning_rate: Annotated[float, Field(gt=0)] = 0.01
    table_optimizer: ForTables = "adamw"
    table_learning_rate: Annotated[float, Field(gt=0)] | None = None
    warmup_ratio: Annotated[float, Field(ge=0, le=1)] = 0.1
    lr_scheduler_type: Schedule = "linear"
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    max_grad_norm: Annotated[float, Field(gt=0)] | None = None
    gradient_accumulation_steps: Annotated[int, Field(gt=0)] = 1
    cache: Mode = "auto"
    cache_memory: Size | None = None
    select: Annotated[float, Field(gt=0, le=1)] = 1.0
    select_by: By = "guide"
    micro_batch_tokens: Annotated[int, Field(gt=0)] | None = None
    mixed_precision: Wanted = "no"
    device: str = "auto"
    kernel: Kernel = "auto"
    fsdp: bool = False
    divide_tables: bool = False
    sampled: Annotated[int, Field(ge=0)] = 0
    sampled_power: Annotated[float, Field(ge=0)] = 0.0
    guide: str | None = None
    teacher: str | None = None
    ddp_timeout: Annotated[float, Field(gt=0)] = 1800.0
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    evaluations: Annotated[int, Field(ge=0)] = 4
    report_to: tuple[Literal["tensorboard", "wandb", "mlflow", "trackio"], ...] = ()
    keep_best: bool = True
    refit: RefitOn = "none"
    patience: Annotated[int, Field(gt=0)] | None = None
    save_steps: Annotated[int, Field(gt=0)] | None = None
    save_total_limit: Annotated[int, Field(gt=0)] = 1
    skip_non_finite: Annotated[int, Field(ge=0)] = 0

    def __post_init__(self) -> None:
        if self.max_time is not None and self.max_steps is not None:
            raise ConfigError(
                "max_time and max_steps are both limits of the training; give only one of them"
            )
        if self.select != 1 and self.guide is None:
            raise ConfigError(
                "train.select chooses rows by another model: give train.guide, the folder of one"
            )
        if self.select == 1 and self.select_by != "guide":
            raise ConfigError(
                f"train.select_by={self.select_by} chooses rows, but train.select is 1, all of them: give a share"
            )

    @property
    def divides(self) -> bool:
        """True if each process keeps only a part of the towers or tables."""
        return self.fsdp or self.divide_tables

    def settled(self, batch_size: int, epochs: float) -> Training:
        """Return the options with values in the place of "auto"."""
        if self.batch_size != "auto":
            batch_size = self.batch_size
        if self.num_train_epochs != "auto":
            epochs = self.num_train_epochs
        return replace(self, batch_size=batch_size, num_train_epochs=epochs)

    @property
    def size(self) -> int:
        """The batch size, after "auto" has been replaced by a number."""
        assert not isinstance(self.batch_size, str)
        return self.batch_size

    def steps(self, batches_per_epoch: int) -> int:
        """Return the number of optimiser steps of the run."""
        if self.max_steps is not None:
            return self.max_steps
        batches = float(self.num_train_epochs) * batches_per_epoch
        return max(1, round(batches / self.gradient_accumulation_steps))

    def check(self, devices: Devices) -> None:
        """Refuse options beyond the devices, and log the missing abilities of a device, with the
        replacements.

        Raises:
            ConfigError: see `refuse`.
        """
        device = devices.group.device
        if devices.group.main:
            lacks = missing(device)
            if lacks:
                logger.info(f"the device {device} has {'; '.join(lacks)}")
            if self.mixed_precision == "auto":
                gain = (
                    f"products in bf16 are {bf16_gain(device):.2g} times as fast as in float32 here"
                )
                logger.info(f"mixed_precision: {devices.mixed_precision}, because {gain}")
        self.refuse(devices.group.size)

    def refuse(self, processes: int) -> None:
        """Refuse options that do not suit the number of processes.

        Raises:
            ConfigError: divided towers or tables on one process, in fp16, or both; divided towers
                with sparse gradients.
        """
        if self.fsdp and self.divide_tables:
            raise ConfigError("train.fsdp divides tables, too: drop it or train.divide_tables")
        for option in ("fsdp", "divide_tables"):
            if not getattr(self, option):
                continue
            if processes == 1:
                raise ConfigError("train." + ONE_PROCESS.format(option))
            if self.mixed_precision == "fp16":
                raise ConfigError(
                    f"train.{option} has no gradient scaler, which fp16 needs: use mixed_precision bf16 or no"
                )
        if self.fsdp and self.table_optimizer == "rowwise_adagrad":
            raise ConfigError(
                "train.fsdp needs dense gradients, not rowwise_adagrad's: use table_optimizer adamw"
            )

    @property
    def large_pays(self) -> bool:
        """True if a row costs much less in a larger batch: on an accelerator, and on a CPU that
        reads texts in bf16."""
        return self.mixed_precision == "bf16" or named(self.device).type != "cpu"

    def cached(self, devices: Devices) -> Cache:
        """Return the gradient cache of these options."""
        return Cache(
            mode=self.cache,
            memory=self.cache_memory,
            tokens=self.micro_batch_tokens,
            device=devices.group.device,
            autocast=devices.autocast,
        )

    def loss_pass(self, kernels: Reach, precision: Wanted) -> LossPass:
        """Return the function that computes losses and gradients: in tiles, or by fused kernels.

        Args:
            kernels: the reach of the fused kernels on the device.
            precision: precision of the towers.
        """
        if self.kernel == "torch":
            return tile_losses
        parts = parts_of(precision)
        if self.kernel == "triton":
            return Fused(parts, least=0)
        return Fused(parts, least=MANY) if kernels == "pay" else tile_losses
