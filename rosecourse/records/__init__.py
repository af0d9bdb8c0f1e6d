"""Files of measurements: written whole, sealed, checked when they are read, beside the published figures."""
