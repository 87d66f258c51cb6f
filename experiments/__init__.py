"""Scripts that print the project's figures; each writes its rows to experiments/results/."""
