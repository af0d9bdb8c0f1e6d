"""The part of 075 is checked: right matchers pass, in whatever style; wrong ones are refused by a small story."""

import pytest

from rosecourse.lab import check
from rosecourse.lab.checking.models.stops import StopStories, StopStory, may_be_sent
from rosecourse.serving.stops import StopMatcher


class LetterByLetter:
    """Another style: one letter after another."""

    def __init__(self, stop):
        self.stop, self.held, self.found = stop, "", False

    def push(self, piece, last=False):
        sent = ""
        for letter in piece:
            self.held += letter
            ends = [one for one in self.stop if self.held.endswith(one)]
            if ends:
                self.found = True
                return sent + self.held.removesuffix(max(ends, key=len))
            while self.held and not any(one.startswith(self.held) for one in self.stop):
                sent, self.held = sent + self.held[0], self.held[1:]
        return sent + self.held if last else sent


class SearchesPieces(StopMatcher):
    def push(self, piece, last=False):
        self.found = any(one in piece for one in self.stop)
        return min((piece.partition(one)[0] for one in self.stop), key=len, default=piece)


class HoldsTooMuch(LetterByLetter):
    def push(self, piece, last=False):
        self.held += piece
        ends = [(self.held.find(one) + len(one), -len(one)) for one in self.stop if one in self.held]
        if ends:
            self.found = True
            return self.held[: sum(min(ends))]
        kept = 0 if last else max((len(one) - 1 for one in self.stop), default=0)
        sent, self.held = self.held[: len(self.held) - kept], self.held[len(self.held) - kept :]
        return sent


class ForgetsTheEnd(StopMatcher):
    def push(self, piece, last=False):
        return super().push(piece)


class TakesTheFirstInItsList(LetterByLetter):
    def push(self, piece, last=False):
        text = self.held + piece
        for one in self.stop:
            if one in text:
                self.found = True
                return text[: text.index(one)]
        return super().push(piece, last)


class Raises(StopMatcher):
    def push(self, piece, last=False):
        return piece[0]


@pytest.mark.parametrize("part", [StopMatcher, LetterByLetter])
def test_right_matchers_pass(part):
    verdict = check(part, "075")
    assert verdict.passed
    assert verdict.done


@pytest.mark.parametrize("part", [SearchesPieces, HoldsTooMuch, ForgetsTheEnd, TakesTheFirstInItsList, Raises])
def test_wrong_matchers_are_refused_by_a_small_story(part):
    verdict = check(part, "075")
    assert not verdict.correct
    assert len(verdict.wrong.lines) <= 4
    assert verdict.wrong.fact


def test_model_sends_what_can_be_no_stop_any_more():
    assert may_be_sent("abc", ("cd", "bcd"), False) == ("a", False)
    assert may_be_sent("abc", ("cd", "bcd"), True) == ("abc", False)
    assert may_be_sent("abcde", ("cd", "bcd"), False) == ("a", True)
    assert may_be_sent("abcde", ("bcde", "c"), False) == ("ab", True)


def test_smaller_stories_keep_stop_strings_with_a_letter():
    for story in StopStories().smaller(StopStory(("a", "bc"), ("x", ""))):
        assert all(story.stops)
        assert sum(map(len, story.stops + story.pieces)) <= 4
