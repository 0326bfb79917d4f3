"""Engines that distribute work: local processes, or a Ray cluster."""
