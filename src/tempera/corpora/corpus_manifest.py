"""The files that describe a folder of vectors: the plan, a record of each finished shard, and the
manifest of all.

A folder holds

    encoding.json          the model, the options and the inputs: the plan, written first
    shards/NAME.parquet    the vectors of a shard
    records/NAME.json      the checksums and counts of a finished shard, written after it
    claims/NAME            a shard under way
    corpus.json            everything, written when all shards have a record
    tempera-manifest.json  the checksums of all files, for `tempera check`

A shard is finished if it has a record: resuming looks at nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from ..errors import DataError, OutputError, quantity
from ..io.documents import parsed
from ..io.manifest import MANIFEST, FileSum, Manifest
from .manifest_form import refuse_other_manifest, refuse_other_plan, refuse_other_record
from .output_place import OutputPlace
from .shard_files import CorpusShard

PLAN = "encoding.json"
CORPUS = "corpus.json"
SHARDS = "shards"
RECORDS = "records"
CLAIMS = "claims"
_FORMAT = 1
_BLOCK = 1 << 22


@dataclass(frozen=True)
class CorpusPlan:
    """The inputs of an encoding, its model and its options.

    Args:
        model: name, fingerprint and similarity.
        options: of the encoding.
        inputs: address and size of each shard, by name, in order.
    """

    model: Mapping[str, Any]
    options: Mapping[str, Any]
    inputs: Mapping[str, Mapping[str, Any]]

    def json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "made_by": "tempera",
            "format": _FORMAT,
            "model": dict(self.model),
            "options": dict(self.options),
            "inputs": {name: dict(about) for name, about in self.inputs.items()},
        }

    def settle(self, place: OutputPlace) -> None:
        """Write the plan into a folder, or compare it with the plan in the folder.

        Raises:
            OutputError: the folder holds something else, or vectors of another model, of other
                options or of other inputs.
        """
        content = place.read(PLAN)
        if content is None:
            others = sorted(place.names(""))
            content = place.read(PLAN)  # another worker may have begun meanwhile
        if content is None:
            if others:
                raise OutputError(
                    f"--output {place.address} holds {others[0]}, which is of no corpus of vectors; give another folder"
                )
            place.write(PLAN, written(self.json()))
            return
        earlier = _object(content, f"{place.address}/{PLAN}")
        refuse_other_plan(earlier, f"{place.address}/{PLAN}")
        difference = self._difference(earlier)
        if difference is not None:
            raise OutputError(
                f"--output {place.address} holds vectors of {difference}; give another folder"
            )

    def _difference(self, earlier: Mapping[str, Any]) -> str | None:
        """Return the first difference to an earlier plan, in words."""
        theirs = earlier["model"]["fingerprint"]
        if theirs != self.model["fingerprint"]:
            return f"another model ({theirs[:12]}; this model is {self.model['fingerprint'][:12]})"
        for name, value in self.options.items():
            if earlier["options"].get(name) != value:
                before = json.dumps(earlier["options"].get(name))
                return f"another {name} ({before}; now {json.dumps(value)})"
        for name, about in self.inputs.items():
            before = earlier["inputs"].get(name)
            if before is None:
                return f"another corpus (without {about['address']})"
            if before["size"] != about["size"]:
                return (
                    f"another {about['address']} ({before['size']:,} bytes; now {about['size']:,})"
                )
        for name, before in earlier["inputs"].items():
            if name not in self.inputs:
                return f"another corpus (with {before['address']}, which is missing now)"
        if list(earlier["inputs"]) != list(self.inputs):
            return "the same shards in another order"
        return None


@dataclass(frozen=True)
class ShardRecord:
    """A finished shard.

    Args:
        name: of the shard.
        rows: of the input and of the output.
        groups: number of row groups.
        blank: number of texts without a letter.
        width: of the vectors.
        checksum: of the input.
        size: of the input in bytes.
        state: of the input, as `CorpusShard.state`.
        output: size and checksums of the vectors' file.
    """

    name: str
    rows: int
    groups: int
    blank: int
    width: int
    checksum: str
    size: int
    state: str
    output: FileSum

    def json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "name": self.name,
            "rows": self.rows,
            "groups": self.groups,
            "blank": self.blank,
            "width": self.width,
            "input": {"size": self.size, "xxh3": self.checksum, "state": self.state},
            "output": {"size": self.output.size, "xxh3": list(self.output.sums)},
        }

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> ShardRecord:
        """Return the record in a JSON object."""
        source = document["input"]
        output = document["output"]
        return cls(
            document["name"],
            document["rows"],
            document["groups"],
            document["blank"],
            document["width"],
            source["xxh3"],
            source["size"],
            source["state"],
            FileSum(output["size"], tuple(output["xxh3"])),
        )

    def write(self, place: OutputPlace) -> None:
        """Write the record, after which the shard is finished."""
        place.write(record_name(self.name), written(self.json()))

    @classmethod
    def read(cls, place: OutputPlace, name: str) -> ShardRecord | None:
        """Return the record of a shard; None if the shard is not finished, or its vectors are no
        longer there.

        Raises:
            DataError: the record is damaged.
        """
        content = place.read(record_name(name))
        if content is None:
            return None
        where = f"{place.address}/{record_name(name)}"
        document = _object(content, where)
        refuse_other_record(document, where)
        if document["name"] != name:
            raise DataError(
                f"{where} is the record of {document['name']}: remove it, and encode the shard again"
            )
        record = cls.of(document)
        if place.size(shard_name(name)) != record.output.size:
            return None
        return record

    def refuse_changed(self, shard: CorpusShard) -> None:
        """Raise DataError if the input is not the input that was encoded.

        The input is read only where its state has changed.
        """
        if (shard.size, shard.state) == (self.size, self.state):
            return
        with shard.file() as path:
            if shard.size == self.size and checksum_of(path) == self.checksum:
                return
        raise DataError(
            f"{shard.address} has changed since it was encoded (its checksum differs): encode the corpus into another folder"
        )


def shard_name(name: str) -> str:
    """Return the name of the file with the vectors of a shard."""
    return f"{SHARDS}/{name}.parquet"


def record_name(name: str) -> str:
    """Return the name of the file with the record of a shard."""
    return f"{RECORDS}/{name}.json"


def checksum_of(path: Path) -> str:
    """Return the checksum of a whole file of any size (xxh3)."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def finish(place: OutputPlace, records: Sequence[ShardRecord]) -> dict[str, Any]:
    """Write the manifest of a folder whose shards are all finished; return its content.

    The content depends on nothing but the written plan and the shards: any worker may write it.
    """
    plan = _object(place.read(PLAN) or b"", f"{place.address}/{PLAN}")
    shards = []
    for record in records:
        about = record.json()
        del about["input"]["state"]
        about["input"]["address"] = plan["inputs"][record.name]["address"]
        shards.append(about)
    document = {
        "made_by": "tempera",
        "format": _FORMAT,
        "model": {**plan["model"], "dimensions": records[0].width},
        "options": plan["options"],
        "rows": sum(record.rows for record in records),
        "blank": sum(record.blank for record in records),
        "shards": shards,
    }
    content = written(document)
    has_checksums = place.local is None or place.size(MANIFEST) is not None
    if place.read(CORPUS) == content and has_checksums:
        return document
    place.write(CORPUS, content)
    if place.local is not None:
        files = {shard_name(record.name): record.output for record in records}
        for name in (PLAN, CORPUS, *(record_name(record.name) for record in records)):
            files[name] = FileSum.of(place.local / name)
        place.write(MANIFEST, Manifest(place.local, files).content())
    return document


def read_corpus(place: OutputPlace) -> dict[str, Any]:
    """Return the manifest of a folder of vectors.

    Raises:
        DataError: no such folder, an unfinished one, or a damaged manifest.
    """
    content = place.read(CORPUS)
    if content is not None:
        manifest = _object(content, f"{place.address}/{CORPUS}")
        refuse_other_manifest(manifest, f"{place.address}/{CORPUS}")
        return manifest
    content = place.read(PLAN)
    if content is None:
        raise DataError(f"{place.address} holds no corpus of vectors: {CORPUS} is missing")
    plan = _object(content, f"{place.address}/{PLAN}")
    refuse_other_plan(plan, f"{place.address}/{PLAN}")
    every = plan["inputs"]
    finished = len(place.names(RECORDS))
    raise DataError(
        f"{place.address} is not finished: {finished:,} of {quantity(len(every), 'shards')} are encoded; "
        "run the same tempera encode again"
    )


def is_corpus(path: str | Path) -> bool:
    """Return True if a folder on a disk holds vectors written by `tempera encode`, finished or
    not."""
    return (Path(path) / PLAN).is_file()


def written(document: Mapping[str, Any]) -> bytes:
    """Return a JSON object as the bytes of a file."""
    return (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode(
        "utf-8", "surrogateescape"
    )


def _object(content: bytes, where: str) -> dict[str, Any]:
    try:
        document = parsed(content)
        if not isinstance(document, dict):
            raise ValueError("no JSON object")
        if document.get("format", _FORMAT) > _FORMAT:
            raise DataError(f"{where} is of a later version of Tempera: upgrade tempera")
    except (ValueError, TypeError) as error:
        raise DataError(f"{where} is damaged ({error}): restore it from a copy") from None
    return document
