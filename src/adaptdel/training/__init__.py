"""Fit a base classifier under noise, for every method of the paper."""
