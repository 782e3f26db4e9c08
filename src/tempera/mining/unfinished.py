"""Files of an interrupted mining: blocks of queries that are finished, and the setting of an
index."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..errors import DataError
from ..io.atomic import new_file
from ..io.documents import read_json, write_json
from ..tables.tables import parquet_table
from .shortfall import Report

_REPORT = b"report"


@dataclass(frozen=True)
class IndexSetting:
    """The setting of an index for one mining.

    Args:
        probes: number of clusters that a search visits.
        recall: share of the nearest documents that it finds.
    """

    probes: int
    recall: float

    @classmethod
    def read(cls, path: Path) -> IndexSetting:
        """Return the setting that an interrupted mining has written.

        Raises:
            DataError: the file is damaged.
        """
        try:
            document: Any = read_json(path)
            setting = cls(**document)
        except (OSError, ValueError, TypeError):
            raise _damaged(path) from None
        is_share = isinstance(setting.recall, int | float) and 0 <= setting.recall <= 1
        if type(setting.probes) is not int or not 0 < setting.probes < 1 << 31 or not is_share:
            raise _damaged(path)
        return setting

    def write(self, path: Path) -> None:
        """Write the setting, for a mining that resumes."""
        with new_file(path) as partial:
            write_json(partial, asdict(self))


def with_report(table: pa.Table, report: Report) -> pa.Table:
    """Return a finished block of queries with its report beside it."""
    return table.replace_schema_metadata({_REPORT: report.text()})


def read_block(path: Path, schema: pa.Schema) -> tuple[pa.Table, Report]:
    """Return a finished block of queries, in these columns, and its report.

    Raises:
        DataError: the file is damaged.
    """
    try:
        table = parquet_table(path)
        table.validate(full=True)
        report = Report.of_text((table.schema.metadata or {})[_REPORT])
    except (pa.ArrowException, OSError, ValueError, LookupError, TypeError):
        raise _damaged(path) from None
    table = table.replace_schema_metadata(None)
    if not table.schema.equals(schema):
        raise _damaged(path)
    return table, report


def _damaged(path: Path) -> DataError:
    return DataError(f"{path} is damaged: remove {path.parent}, and mine again")
