"""What the commands do once their flags are parsed: a module for each, with `run`. These import torch."""
