"""Superseded versions of the part `ops`."""
