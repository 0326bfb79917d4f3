"""Labelled files."""
