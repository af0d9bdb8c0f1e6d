"""Superseded versions of the part `kv_append`."""
