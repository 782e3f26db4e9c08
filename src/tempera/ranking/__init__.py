"""Exact search, metrics, intervals, calibration and the words of a verdict: the evaluation of both
texts and recommenders."""
