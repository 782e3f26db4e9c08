#!/usr/bin/env bash
# PyArrow 26.0.1 (seen on 2026-11-30): pyarrow.compute.strptime reads days that their month does not
# have as days of the next month, without an error: 2024-02-31 becomes 2024-03-02. The thirteenth
# month is refused, and a cast of the same text to a timestamp is refused, as is datetime.strptime.
#
# Expected: an error, or null with error_is_null=True. A column of dates with a typing error is
# otherwise shifted by days and never noticed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pyarrow==26.0.1
"$folder/venv/bin/python" - <<'PYTHON'
import datetime

import pyarrow
import pyarrow.compute as compute

print("pyarrow", pyarrow.__version__)
dates = pyarrow.array(["2024-02-31", "2023-02-29", "2024-04-31"])
read = compute.strptime(dates, format="%Y-%m-%d", unit="s", error_is_null=True)
found = [str(value.as_py().date()) for value in read]
for text, value in zip(dates.to_pylist(), found):
    print("strptime:", text, "->", value)
assert found == ["2024-03-02", "2023-03-01", "2024-05-01"], found
try:
    dates.cast(pyarrow.timestamp("s"))
except pyarrow.ArrowInvalid as error:
    print("cast:", error)
else:
    raise SystemExit("a cast reads them now, too")
try:
    datetime.datetime.strptime("2024-02-31", "%Y-%m-%d")
except ValueError as error:
    print("Python:", error)
PYTHON
