"""Superseded versions of the part `start`."""
