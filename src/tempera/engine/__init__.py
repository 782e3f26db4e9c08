"""Training of an objective: the step and the loop around it. Knows neither data nor towers by
name."""
