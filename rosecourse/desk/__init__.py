"""The learner's desk: a copy of the notebooks to work in, `my/`, and what has been done there.

Nothing here but the map of the lessons (`lesson_map.py`) needs torch, so that the commands of the desk are quick.
"""
