"""Superseded versions of the part `block_tables`."""
