"""The learner's desk: a copy of the notebooks to work in, `my/`, and what has been done there."""
