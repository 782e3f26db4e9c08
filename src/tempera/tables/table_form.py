"""The form of a table in a file: options of all sources of tables."""

# Annotations are evaluated here: options are read from the signatures of subclasses in other
# modules.

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, kw_only=True)
class TableForm:
    """The form of the table in the files of a source; the content decides each option of None.

    Args:
        header: whether the first line of separated values holds the names of the columns. Without
            names, columns are called column1, column2, ..., or by `columns`. None is true unless
            the names look like data.
        columns: names of the columns in their order, for files without a line of names.
        encoding: of the texts, for instance latin-1, cp1252 or utf-16. None is UTF-8, or UTF-16
            with a mark.
    """

    header: bool | None = None
    columns: tuple[str, ...] | None = None
    encoding: str | None = None

    @property
    def form(self) -> "TableForm":
        """Return the options of the form alone, without further options of the source."""
        return table_form(vars(self))


def table_form(options: Mapping[str, Any]) -> TableForm:
    """Return the form named by options; further options are ignored.

    >>> table_form({"query": "q", "header": False, "columns": ["q", "d"]})
    TableForm(header=False, columns=('q', 'd'), encoding=None)
    """
    form: dict[str, Any] = {each.name: options.get(each.name) for each in fields(TableForm)}
    if form["columns"] is not None:
        form["columns"] = tuple(form["columns"])
    return TableForm(**form)


BY_CONTENT = TableForm()  # all is told by the content
