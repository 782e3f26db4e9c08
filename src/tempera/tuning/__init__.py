"""Many runs of one configuration: what an option does to the result."""
