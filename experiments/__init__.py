"""The lab notebook: what was tried and measured, with the programs that did it."""
