"""Certification: votes of a base classifier under noise, certificates from votes, verification of certificates."""
