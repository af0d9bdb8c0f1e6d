"""What `check` does: play scenarios, count what is left in a step, and give a verdict."""
