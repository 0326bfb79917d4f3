"""Measurements of speed and of what the methods give."""
