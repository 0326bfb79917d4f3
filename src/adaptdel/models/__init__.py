"""Smoothed classifiers, and the folders in which they are kept."""
