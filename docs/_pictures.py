"""Draw the pictures of the guides as SVG, for light and dark pages: `python docs/_pictures.py`."""

from __future__ import annotations

from html import escape
from pathlib import Path
from statistics import fmean, pstdev

FOLDER = Path(__file__).with_name("pictures")
# The background comes with the picture, so that it is legible where a page is dark and the
# system's preference is light.
STYLE = """
text { fill: #1f2937 } .quiet { fill: #4b5563 } .page { fill: #ffffff }
.box { fill: #e0e7ff; stroke: #4f46e5 } .plain { fill: #f3f4f6; stroke: #9ca3af }
.pair { fill: #4f46e5 } .negative { fill: #fde68a }
.masked { fill: #e5e7eb } .cross { stroke: #b91c1c; stroke-width: 2 }
.line { fill: none; stroke: #6b7280; stroke-width: 1.5 }
.frame { fill: none; stroke: #111827; stroke-width: 2 }
@media (prefers-color-scheme: dark) {
text { fill: #e5e7eb } .quiet { fill: #b6bfcc } .page { fill: #1b2130 }
.box { fill: #31307a; stroke: #a5b4fc } .plain { fill: #2a3244; stroke: #7b8698 }
.pair { fill: #818cf8 } .negative { fill: #e3bd4f }
.masked { fill: #3d475c } .cross { stroke: #fca5a5 } .line { stroke: #a8b2c1 }
.frame { stroke: #f3f4f6 }
}
"""


def picture(title: str, width: int, height: int, parts: list[str]) -> str:
    """Return a picture as the text of an SVG file.

    Args:
        title: the content of the picture in one sentence, for those who do not see it.
        width, height: the size, in pixels.
        parts: SVG elements.
    """
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="14" role="img">'
    )
    page = f'<rect class="page" width="{width}" height="{height}" rx="8"/>'
    lines = [head, f"<title>{escape(title)}</title>", f"<style>{STYLE}</style>", page, *parts]
    return "\n".join([*lines, "</svg>", ""])


def text(
    x: float,
    y: float,
    words: str,
    kind: str = "",
    anchor: str = "start",
    size: float = 14,
    bold: bool = False,
) -> str:
    """Return a line of text; `anchor` is the end that stands at `x`."""
    weight = ' font-weight="bold"' if bold else ""
    given = f' class="{kind}"' if kind else ""
    place = f'x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{size:g}"'
    return f"<text {place}{given}{weight}>{escape(words)}</text>"


def box(x: float, y: float, width: float, height: float, kind: str, round_by: float = 6) -> str:
    """Return a rectangle."""
    size = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{round_by:g}"'
    return f'<rect class="{kind}" {size}/>'


def arrow(x: float, y: float, to_x: float) -> str:
    """Return an arrow to the right."""
    return f'<path class="line" d="M{x:g} {y:g}H{to_x:g}m-6-4 6 4-6 4"/>'


def cross(x: float, y: float, width: float, height: float) -> str:
    """Return the two diagonals of a masked cell."""
    path = f"M{x:g} {y:g}l{width:g} {height:g}m0 {-height:g}l{-width:g} {height:g}"
    return f'<path class="cross" d="{path}"/>'


def batch() -> str:
    """Return the picture of a batch: similarities of its queries with its documents, and masks."""
    queries = (
        "forgot my password",
        "where is my parcel",
        "password reset",
        "return these shoes",
        "track an order",
    )
    docs = ("doc 1", "doc 2", "doc 3", "doc 4", "doc 5", "hard neg.")
    masks = {(0, 2): "a", (2, 0): "a", (1, 4): "b", (4, 1): "c"}
    left, top, wide, high = 164, 66, 64, 32
    parts = [
        text(20, 30, "a batch of 5 pairs with one hard negative", bold=True),
        text(20, 50, "row i: query i", "quiet", size=12),
        text(left + 6 * wide + 12, top + 20, "one row = one softmax", size=12),
    ]
    for column, name in enumerate(docs):
        parts.append(text(left + (column + 0.5) * wide, 58, name, "quiet", "middle", 12))
    for row, query in enumerate(queries):
        parts.append(text(left - 10, top + row * high + 20, query, "quiet", "end", 12))
        for column in range(len(docs)):
            x = left + column * wide
            y = top + row * high
            letter = masks.get((row, column), "")
            kind = "pair" if row == column else "negative"
            if letter:
                kind = "masked"
            parts.append(box(x + 1, y + 1, wide - 2, high - 2, kind, 2))
            if letter:
                parts.append(cross(x + 8, y + 8, 16, 16))
                parts.append(text(x + wide - 16, y + 21, letter, "", "middle", 13, bold=True))
    parts.append(box(left - 1, top - 1, 6 * wide + 2, high + 2, "frame", 2))
    y = top + 5 * high + 26
    legend = (
        ("pair", "", "the pair: its similarity is to rise"),
        ("negative", "", "negatives: their similarities are to fall"),
        ("masked", "a", "masked by same_id: doc 1 and doc 3 are the same text"),
        ("masked", "b", "masked by known_positives: the data say that doc 5 answers query 2, too"),
        ("masked", "c", "masked by guided: a guide model finds doc 2 as close to query 5 as doc 5"),
    )
    for kind, letter, words in legend:
        parts.append(box(20, y - 13, 16, 16, kind, 2))
        if letter:
            parts.append(text(28, y - 1, letter, "", "middle", 12, bold=True))
        parts.append(text(46, y, words, size=13))
        y += 22
    return picture("The similarities of a batch, its masks and a softmax", 720, int(y - 6), parts)


def stages() -> str:
    """Return the picture of a run's stages, from data to a folder."""
    names = (
        ("read", ("files become", "pairs; a tenth", "is held out for", "the test, a tenth", "for validation")),
        ("choose", ("what you left", "open is tried in", "short trainings;", "validation", "decides")),
        ("limit", ("a limit of time", "becomes a", "number of", "steps")),
        ("fit", ("steps; the", "weights with the", "best validation", "are kept")),
        ("refit", ("trained again,", "also on what was", "held out")),
        ("judge", ("the test, beside", "the untrained", "model and BM25", "or counting")),
        ("publish", ("model, index,", "metrics and", "report appear", "as one folder")),
    )  # fmt: skip
    parts = [text(16, 28, "tempera train", bold=True)]
    step = 117
    for number, (name, words) in enumerate(names):
        x = 16 + number * step
        parts.append(box(x, 44, 98, 40, "box"))
        parts.append(text(x + 49, 69, name, "", "middle", 15, bold=True))
        if number < len(names) - 1:
            parts.append(arrow(x + 100, 64, x + step - 2))
        for line, part in enumerate(words):
            parts.append(text(x + 49, 104 + 16 * line, part, "quiet", "middle", 11.5))
    note = "The reported figures come from a model that has not seen the test. Afterwards the model learns the test, too."
    parts.append(text(16, 198, note, "quiet", size=12.5))
    width = 16 + len(names) * step - step + 98 + 16
    return picture("The seven stages of a run, from reading to publishing", width, 212, parts)


def run_folder() -> str:
    """Return the picture of a run folder: its files, grouped by their use."""
    groups = (
        (
            "to look at",
            (
                ("report.html", "result, curves and examples; open it in a browser"),
                ("metrics.json", "every figure, with its interval"),
                ("log.jsonl", "losses and learning rates, step by step"),
            ),
        ),
        (
            "to use",
            (
                ("model/", "the towers; sentence-transformers opens those of texts"),
                ("index/", "a vector and a name for every document or item"),
                ("words.parquet", "texts: the words of each document, for --hybrid"),
                ("counts.parquet", "recommenders: items taken one after the other"),
                ("histories.parquet", "recommenders: what each user has taken"),
            ),
        ),
        (
            "to repeat and check",
            (
                ("config.yaml", "every option, also those that the run has chosen"),
                ("trained.npy", "texts: fingerprints of what was trained on"),
                (
                    "evaluated/",
                    "the model of the reported figures, before it learned the test, too",
                ),
                ("objective.safetensors", "the objective's own state"),
                ("tempera-manifest.json", "the checksum of every file: tempera check"),
            ),
        ),
    )
    parts = [text(20, 30, "runs/faq/", bold=True)]
    y = 56
    for title, files in groups:
        high = 24 * len(files) + 12
        parts.append(box(20, y, 680, high, "box" if title == "to use" else "plain"))
        parts.append(text(690, y + 20, title, "", "end", 11.5, bold=True))
        for number, (name, words) in enumerate(files):
            line = y + 22 + 24 * number
            parts.append(text(34, line, name, bold=True, size=13))
            parts.append(text(222, line, words, "quiet", size=13))
        y += high + 10
    return picture("The files of a run folder and their uses", 720, y + 6, parts)


def hit() -> str:
    """Return the picture of a hit's score: words and vectors, standardised and added."""
    docs = ("A", "B", "C")
    cosines = (0.82, 0.55, 0.20)
    words = (3.1, 8.4, 0.0)
    weight = 0.7
    by_vectors = standardised(cosines)
    by_words = standardised(words)
    parts = [
        text(20, 30, "search --hybrid", bold=True),
        box(20, 92, 128, 66, "plain"),
        text(84, 120, "reset code", "", "middle", 14, bold=True),
        text(84, 142, "the query", "quiet", "middle", 12),
    ]
    rows = (
        (50, "vectors", "the query's vector", "cosine with each document", cosines, by_vectors),
        (150, "words", "the query's words", "BM25 of each document", words, by_words),
    )
    for y, title, first, second, raw, standard in rows:
        parts.append(box(190, y, 190, 60, "box"))
        parts.append(text(285, y + 22, title, "", "middle", 14, bold=True))
        parts.append(text(285, y + 39, first, "quiet", "middle", 11.5))
        parts.append(text(285, y + 53, second, "quiet", "middle", 11.5))
        for place, number in enumerate(raw):
            line = y + 17 + 18 * place
            parts.append(text(398, line, docs[place], "quiet", size=12))
            parts.append(text(450, line, f"{number:.2f}", "", "end", 13))
            parts.append(text(528, line, f"{standard[place]:+.2f}", "", "end", 13))
        parts.append(arrow(456, y + 30, 474))
    parts.append(
        '<path class="line" d="M148 115L188 82m-7 2 7-2-3 7M148 137L188 178m-3-7 3 7-7-2"/>'
    )
    parts.append(
        '<path class="line" d="M534 80L562 108m-7-2 7 2-3-7M534 180L562 142m-3 7 3-7-7 2"/>'
    )
    parts.append(text(416, 40, "score", "quiet", "middle", 11.5))
    parts.append(text(506, 40, "standardised", "quiet", "middle", 11.5))
    parts.append(box(566, 78, 164, 92, "box"))
    parts.append(text(648, 96, f"{weight:g} vectors + {1 - weight:.1f} words", "", "middle", 12))
    for place, name in enumerate(docs):
        total = weight * by_vectors[place] + (1 - weight) * by_words[place]
        line = 118 + 20 * place
        parts.append(text(606, line, f"{place + 1}.  {name}", "", "start", 14, bold=True))
        parts.append(text(700, line, f"{total:+.2f}", "", "end", 14))
    notes = (
        "Standardised: less the mean and divided by the standard deviation over all documents, here three.",
        "The run chooses the two weights on its validation queries. Without --hybrid a hit's score is the cosine.",
    )
    parts.append(text(20, 238, notes[0], "quiet", size=12.5))
    parts.append(text(20, 257, notes[1], "quiet", size=12.5))
    return picture("How the score of a hit is made of words and vectors", 750, 270, parts)


def standardised(scores: tuple[float, ...]) -> list[float]:
    """Return scores with a mean of 0 and a standard deviation of 1."""
    mean = fmean(scores)
    deviation = pstdev(scores)
    return [(score - mean) / deviation for score in scores]


PICTURES = {"batch": batch, "stages": stages, "run_folder": run_folder, "hit": hit}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw(), encoding="utf-8")
