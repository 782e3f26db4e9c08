"""Make up questions and answers of a help desk: `python examples/make_questions.py faq.csv`.

The texts are made by rules and a seed, for the tutorial docs/tutorials/questions.md. Nobody has
asked these questions, so figures on them say nothing about questions of people.

Each answer has two questions. A question uses everyday words and an answer those of a manual:
`my phone is frozen` is answered by `If the mobile device BK-204 does not respond, ...`. Each product
has two models, and two of three questions name the model. A search that compares words sees the name
of the model and little more; a model that is trained learns which words belong together.
"""

from __future__ import annotations

import argparse
import csv
import random

# The name of each product in the answers, and its names in the questions.
PRODUCTS = {
    "mobile device": ("phone", "cell phone", "smartphone"),
    "portable computer": ("laptop", "notebook"),
    "broadband router": ("wifi box", "modem", "router"),
    "television set": ("tv", "telly"),
    "audio headset": ("earphones", "headphones"),
    "imaging unit": ("camera", "cam"),
    "document printer": ("printer",),
    "activity tracker": ("watch", "fitness band"),
    "loudspeaker": ("speaker", "soundbar"),
    "handheld reader": ("ebook", "e-reader"),
    "beverage machine": ("coffee maker", "espresso machine"),
    "refrigeration unit": ("fridge", "freezer"),
    "laundry appliance": ("washing machine", "washer"),
    "dishwashing appliance": ("dishwasher",),
    "cleaning robot": ("vacuum", "hoover"),
    "heating controller": ("thermostat", "heating"),
    "entry intercom": ("doorbell", "door bell"),
    "storage drive": ("hard disk", "usb stick"),
    "input keyboard": ("keyboard", "keys"),
    "gaming console": ("playstation", "games console"),
    "navigation system": ("satnav", "gps"),
    "electric bicycle": ("ebike", "bike"),
    "induction cooktop": ("stove", "hob"),
    "garden mower": ("lawnmower", "grass cutter"),
}

# What an answer says of a {product}, and ways to ask for it.
SUBJECTS = {
    "If the {product} does not respond, hold the power button for ten seconds.": (
        "my {name} is frozen",
        "{name} hangs and nothing happens",
        "the {name} got stuck, what now",
    ),
    "Before passing the {product} to another person, restore its factory settings.": (
        "how do I wipe my {name}",
        "I want to sell my {name}, how to erase everything",
        "delete all my stuff from the {name}",
    ),
    "The battery of the {product} is replaced by an authorised workshop.": (
        "{name} is empty after an hour",
        "my {name} no longer holds its charge",
        "where can I get a new battery for my {name}",
    ),
    "Liquid inside the {product} is not covered by the guarantee.": (
        "I spilled water on my {name}",
        "my {name} got wet, will you pay",
        "{name} fell into the bath",
    ),
    "To send the {product} back, print the label from the order page.": (
        "I do not like the {name}, can I return it",
        "how do I give back a {name}",
        "return {name} please",
    ),
    "The {product} is paid in up to twelve monthly instalments.": (
        "can I pay the {name} bit by bit",
        "too expensive, is there credit for a {name}",
        "pay for a {name} every month",
    ),
    "Connect the {product} to the wireless network by the pairing button.": (
        "how to get my {name} online",
        "{name} does not find the wifi",
        "set up internet on the {name}",
    ),
    "Noise of the {product} is reduced by a level surface and new filters.": (
        "my {name} is so loud",
        "{name} makes a strange sound",
        "why does the {name} rattle",
    ),
    "The current software of the {product} is installed from the menu Service.": (
        "how to update the {name}",
        "is there a newer version for my {name}",
        "{name} says upgrade needed",
    ),
    "Spare parts of the {product} are supplied for seven years after purchase.": (
        "a piece of my {name} broke off",
        "the {name} is old, do you still sell bits for it",
        "lost a screw of my {name}",
    ),
    "Clean the {product} with a damp cloth and without solvents.": (
        "my {name} is dirty",
        "how do I get stains off the {name}",
        "can I wash a {name}",
    ),
    "A parent code limits the use of the {product} by minors.": (
        "how do I lock the {name} for my kids",
        "my son uses the {name} all day",
        "child safe {name}",
    ),
}
DETAILS = (
    "Have the serial number ready.",
    "This takes a few minutes.",
    "Our staff in the branches will assist you.",
    "See chapter {chapter} of the manual.",
    "",
)
GREETINGS = ("", "", "", "hello, ", "hi, ", "please help: ", "quick question, ")


def pairs(count: int, seed: int) -> list[tuple[str, str]]:
    """Return pairs of a question and its answer, each answer with two questions.

    Args:
        count: number of pairs, at most four for each product and subject.
        seed: seed of all that is drawn: models, answers, words and slips of the keyboard.
    """
    draw = random.Random(seed)
    models = {product: [model_name(draw), model_name(draw)] for product in PRODUCTS}
    kinds = []
    for product in PRODUCTS:
        for subject in SUBJECTS:
            kinds += [(product, subject, model) for model in models[product]]
    draw.shuffle(kinds)
    rows = []
    for product, subject, model in kinds[: count // 2]:
        detail = draw.choice(DETAILS).format(chapter=draw.randrange(1, 10))
        answer = f"{subject.format(product=f'{product} {model}')} {detail}".strip()
        for way in draw.sample(SUBJECTS[subject], 2):
            name = with_slip(draw.choice(PRODUCTS[product]), draw)
            if draw.random() < 2 / 3:
                name = f"{name} {model}"
            rows.append((draw.choice(GREETINGS) + way.format(name=name), answer))
    draw.shuffle(rows)
    return rows


def model_name(draw: random.Random) -> str:
    """Return a made-up name of a model, such as BK-204."""
    return "".join(draw.sample("ABCDEFGHKLMNPRSTUVWXZ", 2)) + f"-{draw.randrange(100, 1000)}"


def with_slip(word: str, draw: random.Random) -> str:
    """Return a word of which one letter is missing, in one of eight draws."""
    if draw.random() < 7 / 8:
        return word
    at = draw.randrange(1, len(word))
    return word[:at] + word[at + 1 :]


def main() -> None:
    """Write the pairs as a CSV file."""
    parser = argparse.ArgumentParser(description="Make up questions and answers of a help desk.")
    parser.add_argument("path", help="the CSV file to write")
    parser.add_argument("--rows", type=int, default=1152, help="number of pairs, 1152 at most")
    parser.add_argument("--seed", type=int, default=0, help="seed of the texts")
    options = parser.parse_args()
    rows = pairs(options.rows, options.seed)
    with open(options.path, "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["question", "answer"])
        table.writerows(rows)
    print(f"{options.path}: {len(rows):,} made-up questions with their answers")


if __name__ == "__main__":
    main()
