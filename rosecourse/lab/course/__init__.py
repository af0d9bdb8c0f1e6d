"""What each lesson asks of the learner: the task, the bug, and what its idea takes out of a step."""
