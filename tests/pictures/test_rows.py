"""The picture of the rows on the device: every cell is where the buffer has it, and says who wrote it."""

import pytest

from rosecourse import EngineConfig, InferenceEngine, SamplingParams, lesson
from rosecourse.decode.rows import FIELDS, KEY, POSITION, TEMPERATURE, TOKEN, TOP_K, TOP_P
from rosecourse.lessons.l064 import Rows as RowsOfSession
from rosecourse.pictures.colours import BY_DEVICE, USED
from rosecourse.pictures.rows import rows_map
from rosecourse.request.draws import key_of
from tests.support.diagram_reader import rows_of, step

PARAMS = SamplingParams(max_new_tokens=12, temperature=0.7, top_k=5, top_p=0.9, seed=3, stop_on_eos=False)


class Noted(RowsOfSession):
    sent = None

    def _upload(self, changes):
        self.sent = dict(changes)
        super()._upload(changes)


@pytest.fixture
def engine(model):
    config = EngineConfig(block_size=4, max_batch_size=4, max_seq_len=24, prefix_cache=False)
    return InferenceEngine(model, config, lesson("065").after.with_(rows=Noted))


def start(engine, *lengths):
    sessions = [engine.new_session(range(1, n + 1), PARAMS) for n in lengths]
    engine.take_tokens(sessions, engine.prefill(sessions))
    return sessions


def address(rows, row, column):
    """Where the buffer has a cell: the fields come first, each for all rows, and then the tables row by row."""
    if column < FIELDS:
        return column * rows.max_rows + row
    return FIELDS * rows.max_rows + row * rows.max_blocks + column - FIELDS


def cells(picture, rows):
    """(row, address) -> (text, whether the device changed it); where cells have an outline; where they are white."""
    found, outlined, white = {}, set(), set()
    for row, line in enumerate(rows_of(picture)[2:]):
        for column, cell in enumerate(list(line.values())[1:]):
            place = address(rows, row, column)
            found[row, place] = (cell.text, cell.fill == BY_DEVICE)
            outlined |= {place} if cell.marked else set()
            white |= {place} if cell.fill == USED else set()
    return found, outlined, white


def test_cells_show_the_buffer_where_it_has_them(engine):
    a, b, c = start(engine, 10, 3, 9)
    step(engine, a, b, c)
    step(engine, a, c)  # c's table lies where b's was, and c's old row is not in use
    rows = engine.decode_step.rows
    found, _, read = cells(rows_map(rows, {"A": a.table, "B": b.table, "C": c.table}), rows)
    assert sorted(address for _, address in found) == list(range(rows.state.numel()))
    expected = {}
    for row, session in enumerate((a, c)):
        fields = {TEMPERATURE: "0.7", TOP_K: "5", TOP_P: "0.9", KEY: f"{key_of(3):08x}"}
        fields |= {TOKEN: str(session.token_ids[-1]), POSITION: str(session.num_cached_tokens)}
        expected |= {(row, field * rows.max_rows + row): said for field, said in fields.items()}
        first = FIELDS * rows.max_rows + row * rows.max_blocks
        expected |= {(row, first + n): f"#{block}" for n, block in enumerate(session.table)}
    assert {place: found[place][0] for place in expected} == expected
    assert read == {address for _, address in expected}  # what nobody reads is pale


def test_cells_tell_the_host_from_the_device(engine):
    a, b = start(engine, 4, 2)
    step(engine, a, b)
    rows, tables = engine.decode_step.rows, {"A": a.table, "B": b.table}
    for _ in range(3):
        then = rows_map(rows, tables)
        rows.sent = {}
        step(engine, a, b)
        found, outlined, _ = cells(rows_map(rows, tables, then, rows.sent), rows)
        assert outlined == set(rows.sent)
        by_device = {address for (_, address), (_, moved) in found.items() if moved}
        assert {POSITION * 4, POSITION * 4 + 1} <= by_device
        assert by_device <= {TOKEN * 4, TOKEN * 4 + 1, POSITION * 4, POSITION * 4 + 1}
