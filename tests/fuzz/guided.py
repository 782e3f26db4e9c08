"""Readers tried with inputs that coverage guides: python tests/fuzz/guided.py [--inputs 100000]
[--seconds 600] [READER ...].

atheris (`pip install atheris`) watches which lines of the package its bytes reach; they are the
draws of whatever makes the inputs of `soak.py`, so that both try the same kinds of files. Each
reader has a process of its own, since libFuzzer ends the one that it runs in. Figures go to
bench/results/soak.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from pathlib import Path
from random import Random

import soak


class Drawn(Random):
    """Chance that is decided by bytes, and behind their end by their checksum."""

    def __new__(cls, data: bytes) -> Drawn:
        return super().__new__(cls)

    def __init__(self, data: bytes) -> None:
        super().__init__(zlib.crc32(data))
        self.data, self.at = data, 0

    def getrandbits(self, k: int, /) -> int:
        size = (k + 7) // 8
        taken = self.data[self.at : self.at + size]
        self.at += size
        if len(taken) < size:
            return super().getrandbits(k)
        return int.from_bytes(taken, "little") >> (8 * size - k)

    def random(self) -> float:
        return self.getrandbits(53) / 2**53


def guide(name: str, sample: Path, inputs: int, seconds: float) -> None:
    """Try a reader in this process, which ends with it; figures go to `sample/NAME.json` as they
    come."""
    import atheris

    with atheris.instrument_imports(include=["tempera"]):
        from inputs import Place, accepts, readers

        reader = readers(sample / "texts", sample / "items", sample / f"{name}.scratch")[name]
    place = Place(sample / f"{name}.in put")
    place.folder.mkdir()
    faults: Counter[str] = Counter()
    done, accepted, began = 0, 0, time.monotonic()

    def one(data: bytes) -> None:
        nonlocal done, accepted
        try:
            accepted += accepts(reader, Drawn(data), place)
        except BaseException as error:
            kind = soak.kind_of(error)
            faults[kind] += 1
            if faults[kind] == 1:
                print(
                    name,
                    json.dumps({"fault": kind, "bytes": data.hex(), "says": str(error)[:400]}),
                    flush=True,
                )
        done += 1
        over = time.monotonic() - began
        if done % soak.REPORT == 0 or done == inputs or over > seconds:
            refused = done - accepted - sum(faults.values())
            figures = {
                "inputs": done,
                "accepted": accepted,
                "refused": refused,
                "faults": dict(faults),
            }
            told = sample / f"{name}.json.part"
            told.write_text(json.dumps({**figures, "seconds": round(over, 1)}))
            told.rename(sample / f"{name}.json")
        if done == inputs or over > seconds:
            os._exit(0)

    atheris.Setup(
        [sys.argv[0], "-max_len=2048", "-timeout=60", "-rss_limit_mb=0", "-verbosity=0"], one
    )
    atheris.Fuzz()


def main() -> None:
    """Run the campaign and record it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("readers", nargs="*")
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=600, help="of each reader, at most")
    parser.add_argument(
        "--sample", type=Path, help=argparse.SUPPRESS
    )  # of the process that tries one
    parser.add_argument("--record", type=Path, default=soak.RESULT)
    given = parser.parse_args()
    if given.sample is not None:
        guide(given.readers[0], given.sample, given.inputs, given.seconds)
        return
    with tempfile.TemporaryDirectory(
        dir="/dev/shm" if Path("/dev/shm").is_dir() else None
    ) as folder:
        sample = Path(folder)
        soak.samples(sample)
        from inputs import readers

        for name in given.readers or list(
            readers(sample / "texts", sample / "items", sample / "names")
        ):
            limits = [
                "--inputs",
                str(given.inputs),
                "--seconds",
                str(given.seconds),
                "--sample",
                folder,
            ]
            ended = subprocess.run(
                [sys.executable, __file__, name, *limits], stderr=subprocess.DEVNULL
            ).returncode
            told = sample / f"{name}.json"
            found = json.loads(told.read_text()) if told.exists() else {"inputs": 0, "faults": {}}
            if ended:
                found["faults"][f"its process ended with {ended}"] = 1
            soak.record(given.record, "guided", name, found)


if __name__ == "__main__":
    main()
