"""The paper's experiments at laptop scale: ``python -m experiments.paper --data FOLDER``."""
