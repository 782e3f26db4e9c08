"""Kept columns as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any


def json_columns(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the kept columns of a document as JSON values.

    Dates and times are texts in the form of ISO 8601. NaN and infinity are null.

    >>> json_columns({"day": date(2024, 1, 31), "price": float("nan"), "year": 2024})
    {'day': '2024-01-31', 'price': None, 'year': 2024}
    """
    return {name: _json_value(value) for name, value in columns.items()}


def _json_value(value: Any) -> Any:
    """Return a value as JSON has it; a value of any other kind is a text."""
    if isinstance(value, list):
        return [_json_value(each) for each in value]
    if isinstance(value, dict):
        return json_columns(value)
    if isinstance(value, Decimal):
        value = float(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, date | datetime | time):
        return value.isoformat()
    return str(value)
