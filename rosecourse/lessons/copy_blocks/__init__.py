"""Superseded versions of the part `copy_blocks`."""
