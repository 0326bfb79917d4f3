"""Labelled files: JSON lines, CSV or Parquet, gzipped or not, or a data set of Hugging Face."""

from adaptdel.data.examples import Examples, held_out, read_examples
from adaptdel.data.rows import Label, Row, read_rows

__all__ = ["Examples", "Label", "Row", "held_out", "read_examples", "read_rows"]
