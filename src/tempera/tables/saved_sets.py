"""Data sets written by Hugging Face's `save_to_disk`: Arrow files listed in state.json, or a folder
of data sets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import DataError
from ..io.documents import read_json
from ..io.untrusted import inside

PART_NAMES = {  # usual names of the parts of a data set
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing"),
}
_FILES = "state.json"
_SPLITS = "dataset_dict.json"


def splits(folder: Path) -> list[Path]:
    """Return the folder of each data set of a DatasetDict; none for any other folder.

    Raises:
        DataError: the list of splits is damaged.
    """
    if not (folder / _SPLITS).is_file():
        return []
    names = _listed(folder / _SPLITS, lambda document: document["splits"])
    return [inside(folder, name) for name in names]


def arrow_files(folder: Path) -> list[Path]:
    """Return the files of a Dataset, in order, without the files of a cache beside them; none for
    any other folder.

    Raises:
        DataError: the list of files is damaged, or the folder holds several data sets.
    """
    several = splits(folder)
    if several:
        raise DataError(
            f"{folder} holds {len(several)} data sets; give one of them: {', '.join(map(str, several))}"
        )
    if not (folder / _FILES).is_file():
        return []
    names = _listed(
        folder / _FILES, lambda document: [file["filename"] for file in document["_data_files"]]
    )
    return [inside(folder, name) for name in names]


def _listed(path: Path, names: Callable[[Any], list[str]]) -> list[str]:
    """Return the names in the list of a JSON file; `names` takes the list from the document.

    Raises:
        DataError: the file lists no names.
    """
    try:
        return [str(name) for name in names(read_json(path))]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path} is not of a data set that save_to_disk has written: {error}"
        ) from None
