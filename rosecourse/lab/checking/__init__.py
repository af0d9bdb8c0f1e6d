"""`check`: a part lives through stories by number, and the smallest story in which it goes wrong is the verdict."""
