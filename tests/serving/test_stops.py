"""Stop strings over pieces of text, beside a plain search of the whole text."""

from hypothesis import given
from hypothesis import strategies as st

from rosecourse.serving.stops import StopMatcher

LETTERS = st.text("ab", max_size=12)
STOPS = st.lists(st.text("ab", min_size=1, max_size=4), max_size=3)


def plain(text, stops):
    """The text before the first stop string: of those that end first, the longest."""
    for end in range(len(text) + 1):
        if found := [one for one in stops if text[:end].endswith(one)]:
            return text[: end - max(map(len, found))]
    return None


@given(st.lists(LETTERS), STOPS)
def test_pieces_give_the_text_before_the_first_stop(pieces, stops):
    matcher, sent, text = StopMatcher(stops), "", ""
    for number, piece in enumerate(pieces):
        text += piece
        sent += matcher.push(piece, last=number == len(pieces) - 1)
        if matcher.found:
            break
    expected = plain(text, stops)
    assert sent == (text if expected is None else expected)
    assert matcher.found == (expected is not None)


@given(LETTERS, STOPS)
def test_what_is_held_back_is_the_start_of_a_stop(text, stops):
    matcher = StopMatcher(stops)
    sent = "".join(map(matcher.push, text))
    if not matcher.found:
        held = text[len(sent) :]
        starts = {one[:n] for one in stops for n in range(len(one))} | {""}
        assert held == max((start for start in starts if text.endswith(start)), key=len)
