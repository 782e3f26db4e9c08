"""The kept columns of documents as columns of a table of their own, in the form for databases, and
back.

An index holds the kept columns in one struct, since a column may have any name there. Databases
filter by plain columns.
"""

from __future__ import annotations

import json

import pyarrow as pa

from ..io.documents import parsed
from ..tables.vector_files import COLUMNS, DOCUMENT, KEY, TEXT, VECTOR

PREFIX = "kept_"  # of a kept column whose name is another column's
FLAT = b"tempera.columns"  # in the metadata: the kept columns, by their names in the table

_OWN = (*DOCUMENT, TEXT, KEY, VECTOR)


def flat_names(kept: list[str]) -> dict[str, str]:
    """Return the names of kept columns in a flat table, and the kept columns that they stand for.

    Databases do not tell `Year` from `year`, so a name is taken in any case of its letters. A name
    that is taken gets a prefix.

    >>> flat_names(["year", "ID", "Year"])
    {'year': 'year', 'kept_ID': 'ID', 'kept_Year': 'Year'}
    """
    taken = set(_OWN)
    names = {}
    for column in kept:
        name = column
        while name.lower() in taken:
            name = PREFIX + name
        taken.add(name.lower())
        names[name] = column
    return names


def flattened(documents: pa.Table) -> pa.Table:
    """Return documents with a column for each kept column in place of the struct; the metadata of
    the schema say which columns are kept ones."""
    if COLUMNS not in documents.column_names:
        return documents
    struct = documents[COLUMNS]
    names = flat_names([field.name for field in struct.type])
    flat = documents.drop_columns([COLUMNS])
    if not names:
        return flat
    for name, column in zip(names, struct.flatten(), strict=True):
        flat = flat.append_column(name, column)
    metadata = {**(documents.schema.metadata or {}), FLAT: json.dumps(names).encode()}
    return flat.replace_schema_metadata(metadata)


def nested(table: pa.Table) -> pa.Table:
    """Return documents with the struct of kept columns, from a table of `flattened`; any other
    table is returned as it is.

    Raises:
        ValueError: the metadata are damaged, or a column that they name is missing.
    """
    text = (table.schema.metadata or {}).get(FLAT)
    if text is None:
        return table
    names = parsed(text)
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise ValueError("the names of its kept columns are not readable")
    missing = [name for name in names if name not in table.column_names]
    if missing:
        raise ValueError(f"the kept column {missing[0]} is missing")
    columns = [table[name].combine_chunks() for name in names]
    fields = [pa.field(names[name], column.type) for name, column in zip(names, columns)]
    struct = pa.StructArray.from_arrays(columns, fields=fields)
    metadata = dict(table.schema.metadata)
    del metadata[FLAT]
    documents = table.drop_columns(list(names)).append_column(COLUMNS, struct)
    return documents.replace_schema_metadata(metadata or None)
