"""The paper's experiments: ``python -m experiments.paper``."""
