"""What a notebook shows of texts, source and diffs: HTML that reads well in both themes, and without any style."""
