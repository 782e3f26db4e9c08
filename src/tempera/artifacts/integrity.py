"""Every file of a folder written by Tempera, compared with the recorded checksum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..arguments import refuse_other_kinds
from ..errors import DataError, quantity
from ..io.atomic import is_run, write_manifest_again
from ..io.manifest import MANIFEST, Manifest, names_in


@dataclass(frozen=True)
class FolderCheck:
    """The result of comparing every file of a folder with the manifests in the folder."""

    folder: Path
    files: int
    damaged: Mapping[str, str]  # faults by the name of the file
    unknown: tuple[str, ...]  # files that no manifest names

    @property
    def is_whole(self) -> bool:
        """True if every file of the manifests is as written."""
        return not self.damaged

    def json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {
            "folder": str(self.folder),
            "whole": self.is_whole,
            "files": self.files,
            "damaged": dict(self.damaged),
            "unknown": list(self.unknown),
        }

    def __str__(self) -> str:
        lines = [f"damaged: {name}: {fault}" for name, fault in self.damaged.items()]
        lines += [f"unknown: {name}: no manifest names it" for name in self.unknown]
        many = quantity(self.files, "files")
        if self.is_whole:
            lines.append(f"{self.folder} is whole: {many} as written")
        else:
            lines.append(
                f"{self.folder} is damaged: {len(self.damaged):,} of {many}; restore it from a copy, or "
                "make it again"
            )
        return "\n".join(lines)


def check(folder: str | Path, accept: bool = False) -> FolderCheck:
    """Read every file of a folder written by Tempera, and compare the file with the recorded
    checksum.

    Args:
        folder: of a run, an export, a merged model or checkpoints, with the exports and checkpoints
            in the folder.
        accept: record the present files, after a change of your own, or for a run of an earlier
            version without checksums.

    Raises:
        DataError: a missing folder, or a folder without a manifest, as of an earlier version.

    >>> print(check("runs/first"))  # doctest: +ELLIPSIS
    runs/first is whole: ... files as written
    """
    refuse_other_kinds(check, locals())
    place = Path(folder)
    if not place.is_dir():
        raise DataError(f"no such folder: {folder}")
    manifests = [path.parent for path in sorted(place.rglob(MANIFEST))]
    if accept and not manifests and is_run(place):
        manifests = [place]
    if not manifests:
        raise DataError(f"{folder} has no {MANIFEST}: {_instead(place)}")
    if accept:
        for each in manifests:
            write_manifest_again(each)
    damaged: dict[str, str] = {}
    unknown: list[str] = []
    count = 0
    for each in manifests:
        prefix = "" if each == place else f"{each.relative_to(place).as_posix()}/"
        try:
            manifest = Manifest.of_folder(each)
        except DataError as error:
            damaged[prefix + MANIFEST] = str(error)
            continue
        count += len(manifest.files)
        for name, recorded in manifest.files.items():
            fault = recorded.fault(each / name)
            if fault:
                damaged[prefix + name] = fault
        unknown += [prefix + name for name in names_in(each) if name not in manifest.files]
    return FolderCheck(place, count, damaged, tuple(unknown))


def _instead(folder: Path) -> str:
    """Return the reason why a folder has no manifest, with the folder to give instead."""
    around = Manifest.around(folder)
    if around is not None:
        return f"it is a part of {around.folder}, which is compared as a whole: give that"
    if is_run(folder):
        return (
            "it is a run of an earlier version, in which nothing can be compared; --accept records "
            "its files as they are now"
        )
    return "it is no folder that Tempera has written"
