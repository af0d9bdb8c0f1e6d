"""Superseded versions of the part `prefill`."""
