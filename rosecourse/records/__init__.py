"""Files of measurements, written whole, sealed, and checked when they are read; and the published figures."""
