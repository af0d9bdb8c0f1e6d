"""A pool of blocks in which every number is known, and a learner's part that works in it."""
