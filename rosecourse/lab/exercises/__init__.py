"""What a notebook shows: exercise cells, predictions, and the live run."""
