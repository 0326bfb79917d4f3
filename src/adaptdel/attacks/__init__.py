"""Attacks on smoothed classifiers, and the audit of certificates by attacks."""
