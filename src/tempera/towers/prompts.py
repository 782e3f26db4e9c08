"""The names of sentence-transformers for the prompts of queries and of documents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # it would load torch
    from ..core.batch import Role

NAMES: dict[Role, tuple[str, ...]] = {"query": ("query",), "doc": ("document", "passage", "corpus")}


def prompt_among(prompts: Mapping[str, str | None], default: str | None, role: Role) -> str | None:
    """Return the prompt that sentence-transformers' `encode_query` or `encode_document` puts before
    a text.

    An open model has `query` and `document` in any case, if they are empty; a mapping without them
    is that of a trainer.

    >>> prompt_among({"query": "q: ", "document": "", "passage": "p: "}, None, "doc")
    ''
    >>> prompt_among({"query": "q: ", "passage": "p: "}, None, "doc"), prompt_among({"all": "x: "}, "all", "query")
    ('p: ', 'x: ')
    """
    names = [name for name in (*NAMES[role], default) if name is not None and name in prompts]
    return prompts[names[0]] if names else None
