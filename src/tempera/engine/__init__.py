"""How an objective is trained: the step and the loop around it. Knows neither data nor towers by name."""
