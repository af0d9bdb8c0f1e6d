"""A prompt goes to the replica that knows its beginning, while that one has not much more load than another."""

from rosecourse.serving import routes
from rosecourse.serving.routes import PIECE, Routes

IDLE = {"a": 0, "b": 0}
RULES, DOCUMENT = list(range(PIECE)), list(range(100, 100 + PIECE))


def test_longer_prompt_stays_with_its_beginning():
    chosen = Routes()
    home = chosen.route(RULES + DOCUMENT, IDLE)
    assert chosen.route(RULES + [9] * PIECE, IDLE) == home  # the rules alone
    assert chosen.route(RULES + DOCUMENT + [9] * PIECE, IDLE) == home


def test_busy_home_gives_a_prompt_away_for_good():
    chosen = Routes()
    home = chosen.route(DOCUMENT, IDLE)
    other = chosen.route(DOCUMENT, IDLE | {home: 40})
    assert other != home
    assert chosen.route(DOCUMENT, IDLE) == other


def test_one_prefix_does_not_take_one_replica_alone():
    chosen = Routes()
    homes = [chosen.route(RULES, IDLE) for _ in range(100)]
    assert abs(homes.count("a") - 50) <= routes.AHEAD + 1


def test_home_that_is_gone_is_not_chosen():
    chosen = Routes()
    home = chosen.route(DOCUMENT, IDLE)
    (left,) = IDLE.keys() - {home}
    assert chosen.route(DOCUMENT, {left: 50}) == left
    assert chosen.route(DOCUMENT, {left: 0, "c": 0}) == left


def test_prefixes_beyond_the_limit_are_forgotten(monkeypatch):
    monkeypatch.setattr(routes, "MOST_PREFIXES", 8)
    chosen = Routes()
    for number in range(100):
        chosen.route([number] * PIECE * 2, IDLE)
    assert len(chosen.homes) == 8
