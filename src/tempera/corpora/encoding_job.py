"""A corpus to encode: the model, the shards, the options, and the folder of the vectors."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import DataError, OutputError, refuse_unknown
from ..io.atomic import refuse_inside_run, refuse_read
from ..io.manifest import FileSum
from .corpus_manifest import (
    CorpusPlan,
    ShardRecord,
    checksum_of,
    finish,
    shard_name,
)
from .encoded_shard import ShardWriter
from .encoding_model import EncodingModel
from .output_place import OutputPlace, place_of
from .shard_columns import ShardColumns
from .shard_files import CorpusShard, is_remote, shards_of
from .shard_tables import column_names
from .stored_vectors import refuse_unstorable

if TYPE_CHECKING:
    from ..core.batch import Role


@dataclass(frozen=True)
class EncodingOptions:
    """The options of an encoding that its vectors depend on; None and no columns stand for usual
    names.

    Args:
        text: columns of texts, joined by a space.
        id: column of ids.
        columns: to keep beside the vectors.
        dtype: of the stored numbers: float32, float16 or int8.
        role: of the texts, "doc" or "query".
        half: a transformer computes in bf16.
    """

    text: tuple[str, ...] = ()
    id: str | None = None
    columns: tuple[str, ...] = ()
    dtype: str = "float32"
    role: Role = "doc"
    half: bool = False


@dataclass
class EncodingJob:
    """The encoding of one corpus; all that is written depends on these values and on the files they
    name.

    Args:
        model: folder of a saved model or of a run, or a name of the Hugging Face hub.
        corpus: paths, patterns or addresses of shards.
        output: folder, or address in an object store.
        options: see `EncodingOptions`.
    """

    model: str
    corpus: tuple[str, ...]
    output: str
    options: EncodingOptions = field(default_factory=EncodingOptions)

    def json(self) -> dict[str, Any]:
        """Return a JSON object, from which `of` makes the same job."""
        return asdict(self)

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> EncodingJob:
        """Return the job of a JSON object."""
        values = dict(document["options"])
        for name in ("text", "columns"):
            values[name] = tuple(values[name])
        options = EncodingOptions(**values)
        return cls(document["model"], tuple(document["corpus"]), document["output"], options)

    def absolute(self) -> EncodingJob:
        """Return the same job with whole paths, for processes in other folders."""
        corpus = tuple(each if is_remote(each) else os.path.abspath(each) for each in self.corpus)
        output = self.output if is_remote(self.output) else os.path.abspath(self.output)
        model = os.path.abspath(self.model) if os.path.exists(self.model) else self.model
        return EncodingJob(model, corpus, output, self.options)

    @cached_property
    def encoder(self) -> EncodingModel:
        """The model."""
        return EncodingModel(self.model, self.options.role, self.options.half)

    @cached_property
    def shards(self) -> list[CorpusShard]:
        """The shards of texts, in order."""
        return shards_of(self.corpus)

    @cached_property
    def place(self) -> OutputPlace:
        """The folder of the vectors."""
        return place_of(self.output)

    @cached_property
    def columns(self) -> ShardColumns:
        """The columns of every shard, chosen by the first."""
        options = self.options
        first = self.shards[0]
        with first.file() as path:
            names = column_names(path)
        return ShardColumns.of(names, first.address, options.text, options.id, options.columns)

    @cached_property
    def plan(self) -> CorpusPlan:
        """The plan: what is written, and of what."""
        columns = self.columns
        options = {
            "text": list(columns.text),
            "id": columns.id,
            "columns": list(columns.kept),
            "dtype": self.options.dtype,
            "role": self.options.role,
            "half": self.options.half,
        }
        model = {
            "name": self.absolute().model,
            "fingerprint": self.encoder.fingerprint,
            "similarity": self.encoder.similarity,
        }
        inputs = {}
        for shard in self.shards:
            inputs[shard.name] = {"address": shard.address, "size": shard.size}
        return CorpusPlan(model, options, inputs)

    def begin(self) -> None:
        """Check everything that can be checked before a text is read, and write the plan.

        Raises:
            TemperaError: wrong options, no model, no corpus, a folder of something else, or vectors
                that an earlier encoding made of another input.
        """
        refuse_unknown("role", self.options.role, "doc", "query")
        self._refuse_output()
        refuse_unstorable(self.options.dtype, self.encoder.similarity)
        self.plan.settle(self.place)

    def _refuse_output(self) -> None:
        """Raise OutputError for an output that is, holds or lies in the corpus or a run."""
        if self.place.local is None:
            for each in self.corpus:
                if is_remote(each) and f"{each.rstrip('/')}/".startswith(
                    f"{self.output.rstrip('/')}/"
                ):
                    raise OutputError(
                        f"--output {self.output} is, or holds, {each}, which this command reads; give another folder"
                    )
            return
        output = self.place.local
        if output.exists() and not output.is_dir():
            raise OutputError(f"--output {output} is a file; give a folder")
        refuse_inside_run(output)
        local = [shard.address for shard in self.shards if not is_remote(shard.address)]
        refuse_read(output, [*local, self.model])
        real = Path(os.path.realpath(output))
        folders = [each for each in self.corpus if not is_remote(each) and os.path.isdir(each)]
        for each in folders:
            if real.is_relative_to(os.path.realpath(each)):
                raise OutputError(
                    f"--output {output} lies in {each}, which this command reads; give another folder"
                )

    def record(self, shard: CorpusShard) -> ShardRecord | None:
        """Return the record of a shard; None if the shard is still to be encoded.

        Raises:
            DataError: the shard was encoded, and has changed since then.
        """
        record = ShardRecord.read(self.place, shard.name)
        if record is not None:
            record.refuse_changed(shard)
        return record

    def encode(
        self, shard: CorpusShard, tell: Callable[[int], None] = lambda rows: None
    ) -> ShardRecord:
        """Write the vectors of a shard, and then its record.

        Args:
            shard: of the corpus.
            tell: is called with the number of rows, after each part of a row group.

        Raises:
            DataError: an unreadable or changed shard.
            OutputError: a full disk, or a folder that cannot be written.
        """
        with shard.file() as source:
            checksum = checksum_of(source)
            writer = ShardWriter(
                shard.name,
                source,
                shard.address,
                self.columns,
                self.encoder,
                self.options.dtype,
                tell,
            )
            with self.place.writing(shard_name(shard.name)) as path:
                counts = writer.write(path)
                shard.refuse_changed()
                output = FileSum.of(path)
        record = ShardRecord(
            shard.name,
            counts.rows,
            counts.groups,
            counts.blank,
            counts.width,
            checksum,
            shard.size,
            shard.state,
            output,
        )
        record.write(self.place)
        return record

    def finish(self) -> dict[str, Any] | None:
        """Write the manifest if every shard is finished, and return its content; None if a shard is
        not finished."""
        records = []
        for shard in self.shards:
            record = ShardRecord.read(self.place, shard.name)
            if record is None:
                return None
            records.append(record)
        _refuse_widths(records, self.place)
        try:
            return finish(self.place, records)
        except OutputError:
            # A worker that has finished everything removes the files that are under way.
            return finish(self.place, records)

    def unfinished(self) -> list[str]:
        """Return the names of the shards that are still to be encoded."""
        names = []
        for shard in self.shards:
            if ShardRecord.read(self.place, shard.name) is None:
                names.append(shard.name)
        return names


def _refuse_widths(records: Sequence[ShardRecord], place: OutputPlace) -> None:
    for record in records:
        if record.width != records[0].width:
            raise DataError(
                f"{place.address}/{shard_name(record.name)} has vectors of {record.width} numbers, and "
                f"{shard_name(records[0].name)} of {records[0].width}: remove {place.address}, and encode again"
            )
