"""Exact search, metrics, intervals and calibration: what both worlds are judged by."""
