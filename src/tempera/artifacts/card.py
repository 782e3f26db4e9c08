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
    """Hold what a card shows; values that are None or empty are shown as unknown or left out.

    `metrics` holds systems, each with its metrics and their intervals; the model's own is called
    trained.
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
    """Return Markdown after a YAML head as the Hugging Face hub reads it; all that is shown is
    escaped."""
    head = {
        "license": card.license or "unknown",
        **card.subject.head,
        "base_model": card.base_model,
        "language": card.language,
    }
    # JSON is YAML and escapes whatever a value holds; but YAML has no halves of letters, which
    # stand for those above U+FFFF.
    lines = [
        f"{key}: {_paired(json.dumps(value))}" for key, value in head.items() if value is not None
    ]
    parts = [
        "\n".join(["---", *lines, "---"]),
        f"# {_text(card.title or card.subject.card_title)}",
        card.subject.sentence,
        "## Use\n\n" + _fenced(card.subject.use, "python"),
        "## Training data\n\n"
        + _table(["item", "count"], [[key, value] for key, value in card.data.items()]),
        *(["## Metrics\n\n" + _metrics(card.metrics)] if card.metrics else []),
        "## Recipe\n\n" + _fenced(card.recipe, "yaml"),
        "## Licence\n\n" + _licence(card),
    ]
    return "\n\n".join(parts) + "\n"


def _paired(text: str) -> str:
    """Return JSON in which each pair of escapes for one letter is that letter."""
    return _PAIR.sub(lambda match: json.loads(f'"{match[0]}"'), text)


def _metrics(systems: Mapping[str, Mapping[str, Difference]]) -> str:
    names = list(dict.fromkeys(name for metrics in systems.values() for name in metrics))
    rows = [[name, *(_cell(metrics.get(name)) for metrics in systems.values())] for name in names]
    shares = sorted(
        {100 * interval.confidence for metrics in systems.values() for interval in metrics.values()}
    )
    note = f"In brackets: {', '.join(f'{share:g}' for share in shares)} % bootstrap intervals over held-out queries."
    return _table(["metric", *systems], rows) + "\n\n" + note


def _cell(interval: Difference | None) -> str:
    return (
        "" if interval is None else f"{interval.mean:.4f} [{interval.low:.4f}, {interval.high:.4f}]"
    )


def _licence(card: Card) -> str:
    parts = {
        "model": card.license,
        "training data": card.data_license,
        "base model": card.base_model,
    }
    said = [f"- {what}: {_text(value) if value else 'not stated'}" for what, value in parts.items()]
    return (
        "\n".join(said)
        + "\n\nConfirm any licence marked 'not stated' before redistributing this model."
    )


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    cells = [[cell if line is lines[1] else _text(cell) for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def _text(value: str) -> str:
    """Return one line with its markup escaped.

    >>> _text("a|b <i>*c*")
    'a\\\\|b &lt;i&gt;\\\\*c\\\\*'
    """
    plain = " ".join(value.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _MARKDOWN.sub(r"\\\1", plain)


def _fenced(text: str, language: str) -> str:
    fence = "`" * max([3, *(len(run) + 1 for run in _FENCE.findall(text))])
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"
