"""Superseded versions of the part `pipeline`."""
