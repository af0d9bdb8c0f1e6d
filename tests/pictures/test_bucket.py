"""The picture of a bucket: every row as a graph finds it, who sits there, and where it writes."""

import pytest

from rosecourse import ConfigError, EngineConfig, InferenceEngine, SamplingParams, lesson
from rosecourse.pictures.bucket import bucket_map, see_bucket
from tests.support.diagram_reader import boxes, parse, rows_of, step

PARAMS = SamplingParams(max_new_tokens=12, stop_on_eos=False)


@pytest.fixture
def engine(model):
    config = EngineConfig(block_size=4, max_batch_size=8, max_seq_len=24, num_blocks=20, prefix_cache=False)
    return InferenceEngine(model, config, lesson("066").after)


def start(engine, *lengths):
    sessions = [engine.new_session(range(1, n + 1), PARAMS) for n in lengths]
    engine.take_tokens(sessions, engine.prefill(sessions))
    return sessions


def planned(engine, *sessions):
    engine.decode_step.place([session.table for session in sessions])
    engine.decode_step.plan(sessions)
    return engine.decode_step.rows


def texts_of(picture):
    """For each row who sits there, the texts of its cells, and the colours behind them."""
    found = []
    for head, *cells in ([*row.values()] for row in rows_of(picture)[1:]):
        found.append((head.text, [cell.text for cell in cells], {cell.fill for cell in cells}))
    return found


def test_rows_show_where_they_write(engine):
    a, b, c = start(engine, 5, 2, 8)
    rows = planned(engine, a, b, c)
    found = texts_of(bucket_map(see_bucket(rows, 4, {"A": a.table, "B": b.table, "C": c.table})))
    assert len(found) == 4
    for row, (name, session) in enumerate((("A", a), ("B", b), ("C", c))):
        position = session.num_cached_tokens
        where = f"block #{session.table[position // 4]}, slot {position % 4}"
        assert found[row][:2] == (f"{row} {name}", [str(session.token_ids[-1]), str(position), "1", where, "is read"])
    name, (_, position, live, where, outcome), fill = found[3]
    assert (name, position, live, where, outcome) == ("3 pad", "0", "0", "spare block #20, slot 0", "is left")
    assert fill.isdisjoint(found[0][2])


def test_a_row_whose_session_has_left_is_a_pad(engine):
    a, b, c = start(engine, 5, 2, 8)
    step(engine, a, b, c)
    engine.free(b)
    bucket = see_bucket(planned(engine, a, c), 4, {"A": a.table, "C": c.table})
    assert [row.name for row in bucket.rows] == ["A", "C", "", ""]
    assert [(row.position, row.live, row.block) for row in bucket.rows[2:]] == [(0, 0, 20)] * 2
    assert bucket.num_pads == 2


def test_everything_lies_inside_and_no_text_on_another(engine):
    sessions = start(engine, 5, 2, 9)
    names = {f"a session with a long name {n}": one.table for n, one in enumerate(sessions)}
    picture = bucket_map(see_bucket(planned(engine, *sessions), 8, names))
    found = [box for box in boxes(parse(picture)) if box[0] != "rect"]
    for n, (what, left, top, right, bottom) in enumerate(found):
        assert min(left, top) >= 0, what
        assert max(right - picture.width, bottom - picture.height) <= 0, what
        for other, l2, t2, r2, b2 in found[n + 1 :]:
            assert right <= l2 or r2 <= left or bottom <= t2 or b2 <= top, (what, other)


@pytest.mark.parametrize("size", [2, 9, 25])
def test_a_bucket_that_cannot_be_drawn_is_refused(engine, size):
    sessions = start(engine, 5, 2, 9)
    tables = {str(n): one.table for n, one in enumerate(sessions)}
    with pytest.raises(ConfigError, match=f"a bucket of {size} rows for 3 sessions"):
        see_bucket(planned(engine, *sessions), size, tables)


def test_a_session_without_a_name_is_refused(engine):
    a, b = start(engine, 5, 2)
    with pytest.raises(ConfigError, match="row 1 holds a session without a name"):
        see_bucket(planned(engine, a, b), 2, {"A": a.table})
