"""Stop strings in a text that comes in pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Lets the pieces of a text through up to the first stop string, which may span several of them.

    What may still become a stop string is held back, and nothing else. The match that ends first counts; of two that
    end together, the longer one: so the result does not depend on where the pieces end.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self.stop, self.held, self.found = stop, "", False

    def push(self, piece: str, last: bool = False) -> str:
        """What can be sent after one more piece. last: nothing follows, so nothing is held back."""
        if not self.stop:
            return piece
        text = self.held + piece
        matches = [(at + len(one), at) for one in self.stop if (at := text.find(one)) >= 0]
        if matches:
            self.found, self.held = True, ""
            return text[: min(matches)[1]]
        begun = (n for one in self.stop for n in range(1, min(len(one), len(text) + 1)) if text.endswith(one[:n]))
        sent = len(text) - (0 if last else max(begun, default=0))
        self.held = text[sent:]
        return text[:sent]
