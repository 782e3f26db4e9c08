"""What is done with finished runs: judge them again, calibrate, merge."""
