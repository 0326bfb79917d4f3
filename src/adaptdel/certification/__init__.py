"""Noise and a base classifier make votes; votes make certificates; certificates are verified."""
