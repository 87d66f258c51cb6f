"""The field bench (`experiments.field.bench`)."""

from experiments.field.bench import EXPERIMENT
from experiments.frame import run

if __name__ == "__main__":
    run(EXPERIMENT)
