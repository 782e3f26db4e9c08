"""Many runs: sweeps and tunings."""
