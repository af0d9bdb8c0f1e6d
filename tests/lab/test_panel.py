"""The panel of lesson 035: what is drawn is what the engine holds, and what the engine refuses is a sentence."""

import re

import pytest

from rosecourse.lab.exercises import panel
from rosecourse.lab.exercises.panel import Controls, Panel, still
from rosecourse.lab.exercises.playground import FULL, MOST_SESSIONS, Playground, Setting
from rosecourse.pictures.blocks import take_snapshot

pytest.importorskip("ipywidgets")


@pytest.fixture
def controls(model):
    return Controls(model)


def assert_drawn(controls):
    """The picture in the panel is of the engine as it is, and the engine's books are right."""
    ground = controls.ground
    ground.engine.audit(ground.sessions.values())
    assert controls.map.value == ground.picture.svg
    tables = {name: session.block_ids_per_layer for name, session in ground.sessions.items()}
    drawn = ground.picture.snapshot
    held = take_snapshot(ground.engine.kv, tables, 0, drawn.colour_order)
    assert drawn == held
    assert controls.map.value.count('class="cell') == len(held.blocks) == controls.num_blocks.value
    assert tuple(controls.session.options) == tuple(tables)


def said(controls):
    return re.fullmatch(r'<div role="status">(.*)</div>', controls.said.value).group(1)


def tokens(controls):
    return {name: session.num_cached_tokens for name, session in controls.ground.sessions.items()}


def test_it_begins_as_its_controls_stand(controls):
    assert tokens(controls) == {"A": 3, "B": 6, "C": 9}
    assert said(controls).startswith("A, B, C: the prompts are in the cache")
    assert controls.session.value == "A"
    assert_drawn(controls)
    assert 'class="cell marked"' not in controls.map.value


def test_each_setting_begins_anew(controls):
    controls.step.click()
    controls.batch.value = 2
    assert tokens(controls) == {"A": 3, "B": 9}
    controls.lengths.value = (5, 5)
    controls.block_size.value = 2
    controls.num_blocks.value = 7
    assert tokens(controls) == {"A": 5, "B": 5}
    assert (controls.ground.engine.config.block_size, controls.ground.engine.config.num_blocks) == (2, 7)
    assert_drawn(controls)
    controls.step.click()
    controls.again.click()
    assert tokens(controls) == {"A": 5, "B": 5}
    assert_drawn(controls)


def test_a_step_appends_a_token_to_each_session_and_marks_what_has_changed(controls):
    controls.step.click()
    assert tokens(controls) == {"A": 4, "B": 7, "C": 10}
    assert controls.map.value.count('class="cell marked"') == 3
    assert "+1 token" in controls.map.value
    assert_drawn(controls)


def test_a_fork_shares_blocks_until_one_of_the_two_writes(controls):
    controls.session.value = "B"
    controls.fork.click()
    assert said(controls).startswith("D is a fork of B and shares all of its blocks")
    assert controls.session.value == "B"
    assert_drawn(controls)
    b, d = (controls.ground.sessions[name].block_ids_per_layer[0] for name in "BD")
    assert b == d
    full, last = b
    controls.step.click()
    assert (b[0], d[0]) == (full, full)
    assert sorted([b[1] == last, d[1] == last]) == [False, True]
    assert tokens(controls) == {"A": 4, "B": 7, "C": 10, "D": 7}
    assert_drawn(controls)


def test_a_full_pool_is_a_sentence_and_an_end_makes_room(controls):
    while said(controls) != FULL:
        controls.step.click()
        assert_drawn(controls)
    before = tokens(controls)
    controls.step.click()
    assert (said(controls), tokens(controls)) == (FULL, before)
    assert 'class="cell marked"' not in controls.map.value  # nothing has changed
    controls.session.value = "C"
    controls.end.click()
    assert said(controls).startswith("C has ended")
    assert tuple(controls.session.options) == ("A", "B")
    assert controls.session.value == "A"
    assert_drawn(controls)
    controls.step.click()
    assert tokens(controls) == {name: n + 1 for name, n in before.items() if name != "C"}
    assert_drawn(controls)


@pytest.mark.parametrize(
    ("num_blocks", "lengths", "sentence"),
    [
        (4, (9, 16), FULL),
        (4, (24, 24), "A prompt of 24 tokens and 1 new ones need 6 KV blocks, the pool has 4: give the engine more"),
    ],
)
def test_prompts_that_do_not_fit_are_a_sentence_over_an_empty_pool(controls, num_blocks, lengths, sentence):
    controls.num_blocks.value = num_blocks
    controls.lengths.value = lengths
    assert said(controls).startswith(sentence)
    assert tokens(controls) == {}
    assert_drawn(controls)
    for button in (controls.step, controls.fork, controls.end):
        button.click()
        assert said(controls).endswith("session holds blocks: start again.")
        assert_drawn(controls)


def test_a_session_that_has_all_its_tokens_ends(model):
    ground = Playground(model, Setting(batch=1, num_blocks=4, shortest=14, longest=14))  # room for 16
    ground.step()
    assert ground.said == (
        "One more token of each session is in the cache. A: no tokens left to make, so the blocks are given back."
    )
    assert ground.sessions == {}
    ground.engine.audit([])


def test_no_more_forks_than_fit_into_a_step(model):
    ground = Playground(model, Setting(batch=MOST_SESSIONS - 1, num_blocks=48))
    ground.fork("A")
    assert len(ground.sessions) == MOST_SESSIONS
    ground.fork("A")
    assert ground.said == f"{MOST_SESSIONS} sessions are as many as fit into a step here: end one first."
    ground.step()
    assert ground.said.startswith("One more token")
    ground.engine.audit(ground.sessions.values())


@pytest.mark.parametrize("batch", [1, 2, 3, 8])
def test_the_lengths_lie_evenly_between_the_shortest_and_the_longest(batch):
    lengths = Setting(batch=batch, shortest=2, longest=20).lengths
    assert len(lengths) == batch
    assert lengths[0] == 2
    assert lengths[-1] == (20 if batch > 1 else 2)
    assert lengths == sorted(lengths)


# -- where it is displayed -----------------------------------------------------------------------------------------

VIEW = "application/vnd.jupyter.widget-view+json"


def shown(model, monkeypatch, watched, widgets=True):
    monkeypatch.setattr(panel, "watched_shell", lambda: object() if watched else None)
    if not widgets:
        monkeypatch.setattr(panel, "ipywidgets", None)
    made = Panel(model)
    return made, made._repr_mimebundle_()


def test_somebody_who_watches_gets_the_controls_and_the_picture_beside_them(model, monkeypatch):
    made, bundle = shown(model, monkeypatch, watched=True)
    assert bundle[VIEW]["model_id"] == made.controls.box.model_id
    assert bundle["image/svg+xml"] == still(model).svg


def test_a_program_gets_a_picture_alone_and_each_time_the_same(model, monkeypatch, capsys):
    made, bundle = shown(model, monkeypatch, watched=False)
    assert made.controls is None
    assert bundle == {"image/svg+xml": still(model).svg, "text/plain": repr(still(model))}
    assert capsys.readouterr().out == ""


def test_without_ipywidgets_there_is_a_line_and_the_picture(model, monkeypatch, capsys):
    _, bundle = shown(model, monkeypatch, watched=True, widgets=False)
    assert bundle.keys() == {"image/svg+xml", "text/plain"}
    assert " ".join(capsys.readouterr().out.split()) == (
        "The controls need ipywidgets: `pip install ipywidgets`, and restart the kernel. Without them, a picture:"
    )
    with pytest.raises(ImportError, match="The controls need ipywidgets"):
        Controls(model)
    assert shown(model, monkeypatch, watched=False, widgets=False)[1].keys() == bundle.keys()
    assert capsys.readouterr().out == ""


def test_the_picture_shows_a_fork(model):
    assert "owners 1→2" in still(model).svg
