"""Superseded versions of the part `runner`."""
