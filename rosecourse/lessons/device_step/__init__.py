"""Superseded versions of the part `step`."""
