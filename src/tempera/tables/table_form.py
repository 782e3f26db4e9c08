"""The form in which a file holds a table: options that all sources of tables have."""

# Annotations are evaluated here: options are read from the signatures of subclasses in other
# modules.

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, kw_only=True)
class TableForm:
    """Say how the files of a source hold their table; each option is told by the content where it
    is None.

    Args:
        header: whether the first line of separated values holds the names of the columns. Without
            one, columns are called column1, column2, ..., or as `columns` says. None is true unless
            the names look like data.
        columns: names of the columns in their order, for files without a line of names.
        encoding: of the texts, such as latin-1, cp1252 or utf-16. None is UTF-8, or UTF-16 with its
            mark.
    """

    header: bool | None = None
    columns: tuple[str, ...] | None = None
    encoding: str | None = None

    @property
    def form(self) -> "TableForm":
        """Return these options alone, of a source that has others."""
        return table_form(vars(self))


def table_form(options: Mapping[str, Any]) -> TableForm:
    """Return the form that options name, among them others.

    >>> table_form({"query": "q", "header": False, "columns": ["q", "d"]})
    TableForm(header=False, columns=('q', 'd'), encoding=None)
    """
    form: dict[str, Any] = {each.name: options.get(each.name) for each in fields(TableForm)}
    if form["columns"] is not None:
        form["columns"] = tuple(form["columns"])
    return TableForm(**form)


BY_CONTENT = TableForm()  # all is told by the content
