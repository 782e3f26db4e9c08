"""Exact search, metrics, intervals and calibration: the evaluation of both texts and recommenders."""
