"""Work on finished runs: judging again, calibration, merging."""
