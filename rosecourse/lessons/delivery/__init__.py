"""Superseded versions of the part `delivery`."""
