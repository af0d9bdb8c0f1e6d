"""The panel of lesson 035: what is drawn is what the engine holds, and what the engine refuses is a sentence."""

import pytest

from rosecourse.lab.exercises import panel
from rosecourse.lab.exercises.panel import FULL, MOST_SESSIONS, Controls, Panel, Playground
from rosecourse.pictures.blocks import take_snapshot

pytest.importorskip("ipywidgets")


@pytest.fixture
def controls(model):
    return Controls(model)


def assert_drawn(controls):
    """The picture in the panel is of the engine as it is, and the engine's books are right."""
    ground = controls.ground
    ground.engine.audit(list(ground.sessions.values()))
    assert controls.map.value == ground.picture.svg
    tables = {name: session.block_ids_per_layer for name, session in ground.sessions.items()}
    drawn = ground.picture.snapshot
    assert drawn == take_snapshot(ground.engine.kv, tables, 0, drawn.colour_order)
    assert tuple(controls.session.options) == tuple(tables)
    return {name: session.num_cached_tokens for name, session in ground.sessions.items()}


def test_it_starts_again(controls):
    assert assert_drawn(controls) == {"A": 3, "B": 6, "C": 9}
    controls.step.click()
    controls.again.click()
    assert assert_drawn(controls) == {"A": 3, "B": 6, "C": 9}


def test_panel_after_a_step_and_a_fork_keeps_the_chosen_one(controls):
    controls.session.value = "B"
    controls.fork.click()
    assert controls.session.value == "B"
    assert assert_drawn(controls) == {"A": 3, "B": 6, "C": 9, "D": 6}
    controls.step.click()
    assert assert_drawn(controls) == {"A": 4, "B": 7, "C": 10, "D": 7}
    assert 'class="cell marked"' in controls.map.value


def test_a_full_pool_is_a_sentence_and_an_end_makes_room(controls):
    while FULL not in controls.said.value:
        controls.step.click()
        before = assert_drawn(controls)
    controls.step.click()
    assert assert_drawn(controls) == before
    controls.session.value = "C"
    controls.end.click()
    controls.step.click()
    assert assert_drawn(controls) == {name: n + 1 for name, n in before.items() if name != "C"}


def test_without_a_session_the_controls_do_nothing(controls):
    for _ in range(3):
        controls.end.click()
    for button in (controls.step, controls.fork, controls.end):
        assert assert_drawn(controls) == {}
        button.click()
        assert controls.said.value.count("start again") == 1


def test_panel_when_all_tokens_are_there_ends_the_session(model):
    ground = Playground(model)
    for name in "BC":
        ground.do(ground.end, name)
    while ground.sessions:
        ground.do(ground.step)
    ground = Playground(model)
    for _ in range(MOST_SESSIONS):
        ground.do(ground.fork, "A")
    assert len(ground.sessions) == MOST_SESSIONS
    ground.do(ground.step)
    ground.engine.audit(list(ground.sessions.values()))


@pytest.mark.parametrize(("watched", "widgets"), [(True, True), (False, True), (True, False)])
def test_who_watches_gets_the_controls_a_program_a_picture_alone(model, monkeypatch, capsys, watched, widgets):
    monkeypatch.setattr(panel, "watched_shell", lambda: object() if watched else None)
    if not widgets:
        monkeypatch.setattr(panel, "ipywidgets", None)
    shown = Panel(model)._repr_mimebundle_()
    assert "<svg" in shown["image/svg+xml"]
    assert ("application/vnd.jupyter.widget-view+json" in shown) == (watched and widgets)
    assert ("pip install ipywidgets" in capsys.readouterr().out) == (not widgets)
