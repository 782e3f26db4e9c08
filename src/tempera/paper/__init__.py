"""The cost of a step on paper, on devices that need not be there."""
