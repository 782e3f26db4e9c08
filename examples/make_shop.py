"""Make up a shop's purchases: `python examples/make_shop.py shop`.

The customers, articles and purchases are made by rules and a seed, for the tutorial
docs/tutorials/shop.md. Nobody has bought these articles, so figures on them say nothing about
customers of a shop.

A customer likes two departments and one style. What he buys next is often what goes with his last
purchase (a lamp for a tent), mostly in the style that he likes, and seldom something that he has
already. Some articles sell far better than others.
"""

from __future__ import annotations

import argparse
import csv
import random
from datetime import datetime, timedelta
from pathlib import Path

DEPARTMENTS = {
    "camping": ("tent", "sleeping bag", "lamp", "stove", "mat", "rucksack", "hammock", "flask"),
    "kitchen": ("pan", "knife", "board", "kettle", "scale", "whisk", "bowl", "grater"),
    "garden": ("spade", "hose", "seeds", "gloves", "pot", "shears", "rake", "bench"),
    "music": ("guitar", "strings", "tuner", "stand", "microphone", "cable", "drum", "flute"),
    "sports": ("ball", "racket", "shoes", "bottle", "shorts", "jersey", "rope", "towel"),
    "office": ("desk", "chair", "paper", "pen", "folder", "printer", "stapler", "calendar"),
    "pets": ("basket", "leash", "bowl for cats", "brush", "toy", "collar", "aquarium", "cage"),
    "craft": ("drill", "screws", "saw", "hammer", "glue", "paint", "ladder", "pliers"),
}
STYLES = ("plain", "blue", "compact", "large", "classic")
DAYS = 365


def articles() -> list[dict[str, str]]:
    """Return the shop's articles: every kind of every department in every style."""
    rows = []
    for department, kinds in DEPARTMENTS.items():
        for kind in kinds:
            for style in STYLES:
                item = f"A{len(rows):03d}"
                rows.append({"item": item, "title": f"{style} {kind}", "department": department})
    return rows


def purchases(customers: int, seed: int) -> list[dict[str, str]]:
    """Return the purchases of a year, in the order of their times.

    Args:
        customers: number of customers, each with up to 30 purchases.
        seed: seed of all that is drawn.
    """
    draw = random.Random(seed)
    companions = {}
    weights = {}
    for kinds in DEPARTMENTS.values():
        for kind in kinds:
            companions[kind] = draw.choice([other for other in kinds if other != kind])
            weights[kind] = 1 / draw.uniform(0.1, 1)
    numbers = {row["title"]: row["item"] for row in articles()}
    start = datetime(2025, 1, 1)
    rows = []
    for customer in range(customers):
        liked = draw.sample(list(DEPARTMENTS), 2)
        style_liked = draw.choice(STYLES)
        kind = ""
        bought = set()
        day = draw.uniform(0, DAYS * 2 / 3)
        for _ in range(draw.randint(5, 30)):
            if kind and draw.random() < 0.5:
                kind = companions[kind]
            else:
                kinds = DEPARTMENTS[draw.choice(liked)]
                (kind,) = draw.choices(kinds, [weights[each] for each in kinds])
            style = style_liked if draw.random() < 0.7 else draw.choice(STYLES)
            item = numbers[f"{style} {kind}"]
            if item in bought and draw.random() < 0.9:
                continue
            bought.add(item)
            day = min(day + draw.expovariate(1 / 6), DAYS - 0.001)
            time = (start + timedelta(days=day)).isoformat(sep=" ", timespec="seconds")
            rows.append({"user": f"C{customer:04d}", "item": item, "time": time})
    return sorted(rows, key=lambda row: row["time"])


def write(path: Path, rows: list[dict[str, str]]) -> None:
    """Write rows as a CSV file."""
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    print(f"{path}: {len(rows):,} rows, made up")


def main() -> None:
    """Write the purchases and the articles, as CSV files of a folder."""
    parser = argparse.ArgumentParser(description="Make up the purchases of a shop.")
    parser.add_argument("folder", type=Path, help="the folder to write events.csv and items.csv to")
    parser.add_argument("--customers", type=int, default=600, help="number of customers")
    parser.add_argument("--seed", type=int, default=0, help="seed of the purchases")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    write(options.folder / "events.csv", purchases(options.customers, options.seed))
    write(options.folder / "items.csv", articles())


if __name__ == "__main__":
    main()
