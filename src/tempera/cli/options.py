"""Options of a configuration by section, for `tempera train --help`: read from the list of all
options, since importing the code of the options needs seconds."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

from ..errors import nearest
from ..options.known import OptionGroup, groups

_ARGUMENT = re.compile(r"^    (\w+): (.*(?:\n     .*)*)", re.M)
_END = re.compile(r"(?<=[a-z)\]`%])[.;:] |\.$")  # of the first statement of an explanation


def described(docstring: str | None) -> dict[str, str]:
    """Return the explanation of each parameter in the `Args:` of a docstring, as a single line.

    >>> described("Do it.\\n\\nArgs:\\n    depth: ranks that\\n        are read.\\n\\nRaises:\\n    OSError: none.")
    {'depth': 'ranks that are read.'}
    """
    arguments = inspect.cleandoc(docstring or "").partition("\nArgs:\n")[2].partition("\n\n")[0]
    return {name: " ".join(text.split()) for name, text in _ARGUMENT.findall(arguments)}


def lines() -> Iterator[str]:
    """Yield the sections of a configuration, each option with its default and one line of
    explanation."""
    for group in groups():
        if group.section:
            yield f"\n{_heading(group)}:"
            for option in group.options:
                assignment = f"{group.section}.{option.name}={option.default}"
                yield f"  {assignment:<40}  {_END.split(option.text)[0]}"


def _heading(group: OptionGroup) -> str:
    """Return the heading of a group of options: the section, and the choice that opens the
    group."""
    if not group.choice:
        return group.section
    default = " (default)" if group.is_default else ""
    return f"{group.section}, with {group.section}.{group.choice}{default}"


def meant(word: str) -> list[str]:
    """Return the options of a configuration named by a word, or else resembled by the word, with
    sections.

    >>> meant("--temperature"), meant("--batch-size"), meant("--train.max_steps"), meant("--epochs"), meant("--zzz")
    (['objective.temperature'], ['train.batch_size'], ['train.max_steps'], ['train.num_train_epochs'], [])
    """
    word = word.strip("-").replace("-", "_")
    full_names = [
        f"{group.section}.{option.name}"
        for group in groups()
        for option in group.options
        if group.section
    ]
    names = [full_name.partition(".")[2] for full_name in full_names]
    if word not in (*full_names, *names):
        word = nearest(word, names) or ""
    matches = [
        full_name
        for full_name, name in zip(full_names, names, strict=True)
        if word in (full_name, name)
    ]
    return list(dict.fromkeys(matches))
