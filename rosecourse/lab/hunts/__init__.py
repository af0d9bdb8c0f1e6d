"""Bug hunts: a broken part, told by its symptom, and a checked answer."""
