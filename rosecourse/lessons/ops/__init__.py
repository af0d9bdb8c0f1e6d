"""Superseded versions of the part `forward`."""
