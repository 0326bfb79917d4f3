"""Certify a data set into a resumable folder."""
