"""The card of a saved model: description, training data, recipe, metrics, licences and use."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from ..ranking.compare import Difference
from ..task.showcase import Subject

_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+!|~$-])")
_PAIR = re.compile(r"\\ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}")
_FENCE = re.compile(r"`{3,}")


@dataclass(frozen=True)
class Card:
    """Hold the content of a card; None and empty values are shown as unknown or left out.

    `metrics` holds the metrics of each system with their intervals; the model is the system
    "trained".
    """

    title: str | None
    data: Mapping[str, str]
    recipe: str  # YAML
    metrics: Mapping[str, Mapping[str, Difference]]
    subject: Subject
    license: str | None = None
    data_license: str | None = None
    base_model: str | None = None
    language: str | None = None


def render_card(card: Card) -> str:
    """Return Markdown after a YAML head, as the Hugging Face hub reads cards; the content is
    escaped."""
    head = {
        "license": card.license or "unknown",
        **card.subject.head,
        "base_model": card.base_model,
        "language": card.language,
    }
    # JSON is YAML and escapes every value; but YAML has no surrogate pairs, by which JSON writes
    # letters above U+FFFF.
    lines = ["---"]
    for key, value in head.items():
        if value is not None:
            lines.append(f"{key}: {_without_surrogates(json.dumps(value))}")
    lines.append("---")
    counts = [[key, value] for key, value in card.data.items()]
    parts = [
        "\n".join(lines),
        f"# {_text(card.title or card.subject.card_title)}",
        card.subject.sentence,
        "## Use\n\n" + _fenced(card.subject.use, "python"),
        "## Training data\n\n" + _table(["item", "count"], counts),
    ]
    if card.metrics:
        parts.append("## Metrics\n\n" + _metrics(card.metrics))
    parts.append("## Recipe\n\n" + _fenced(card.recipe, "yaml"))
    parts.append("## Licence\n\n" + _licence(card))
    return "\n\n".join(parts) + "\n"


def _without_surrogates(text: str) -> str:
    """Return JSON with a letter in place of each surrogate pair."""
    return _PAIR.sub(lambda match: json.loads(f'"{match[0]}"'), text)


def _metrics(systems: Mapping[str, Mapping[str, Difference]]) -> str:
    """Return the table of the metrics of each system, with their intervals."""
    rows: dict[str, list[str]] = {}
    percents = set()
    for metrics in systems.values():
        for name, interval in metrics.items():
            rows[name] = [name]
            percents.add(100 * interval.confidence)
    for name, row in rows.items():
        for metrics in systems.values():
            row.append(_cell(metrics.get(name)))
    shares = ", ".join(f"{percent:g}" for percent in sorted(percents))
    note = f"In brackets: {shares} % bootstrap intervals over held-out queries."
    return _table(["metric", *systems], list(rows.values())) + "\n\n" + note


def _cell(interval: Difference | None) -> str:
    """Return a mean with its interval; empty for a metric that a system does not have."""
    if interval is None:
        return ""
    return f"{interval.mean:.4f} [{interval.low:.4f}, {interval.high:.4f}]"


def _licence(card: Card) -> str:
    """Return the licences as a list, and advice."""
    parts = {
        "model": card.license,
        "training data": card.data_license,
        "base model": card.base_model,
    }
    lines = []
    for part, value in parts.items():
        lines.append(f"- {part}: {_text(value) if value else 'not stated'}")
    lines.append("\nConfirm any licence marked 'not stated' before redistributing this model.")
    return "\n".join(lines)


def _table(head: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    lines = [_table_row(head), "| --- " * len(head) + "|"]
    lines += [_table_row(row) for row in rows]
    return "\n".join(lines)


def _table_row(cells: list[str]) -> str:
    """Return a row of a Markdown table, with its cells escaped."""
    return f"| {' | '.join(map(_text, cells))} |"


def _text(value: str) -> str:
    """Return one line with its markup escaped.

    >>> _text("a|b <i>*c*")
    'a\\\\|b &lt;i&gt;\\\\*c\\\\*'
    """
    plain = " ".join(value.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKDOWN.sub(r"\\\1", plain)


def _fenced(text: str, language: str) -> str:
    """Return a block of code, between fences that are longer than every fence in the block."""
    longest = max(map(len, _FENCE.findall(text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"
