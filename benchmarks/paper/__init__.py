"""The paper's experiments at laptop scale: ``python -m benchmarks.paper --data FOLDER``."""
