"""Wrong parts of lessons 062 to 065: a plain right one, and the methods in which each differs from it."""

from dataclasses import replace

import torch

from rosecourse.decode import DecodeInputs
from rosecourse.decode.rows import FIELDS, KEY, POSITION, TEMPERATURE, TOKEN, TOP_K, TOP_P, UNKNOWN
from rosecourse.kv.buffers import index_tensor
from rosecourse.lessons.l064 import Rows
from tests.support.by_table_parts import Gathered
from tests.support.right_copies import Indexed


def differing(base, faults):
    """A class for each fault. faults: its name -> the methods that it changes."""
    return {fault: type(fault.title().replace(" ", ""), (base,), methods) for fault, methods in faults.items()}


# -- 062 --------------------------------------------------------------------------------------------------------------


class Plain:
    """Makes room, writes layer by layer, and counts."""

    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        tables = [session.table for session in sessions]
        self.make_room(tables)
        for layer in range(self.kv.num_layers):
            self.write(layer, tables, keys[layer], values[layer])
        for table in tables:
            table.num_tokens += 1

    def make_room(self, tables):
        for source, destination in self.kv.place(tables):
            self.copy(source, destination)

    def copy(self, source, destination):
        self.kv.keys[:, destination] = self.kv.keys[:, source]
        self.kv.values[:, destination] = self.kv.values[:, source]

    def write(self, layer, tables, k, v):
        blocks = index_tensor([table[-1] for table in tables], self.kv.device)
        slots = index_tensor([table.num_tokens % self.kv.block_size for table in tables], self.kv.device)
        self.kv.k_layers[layer][blocks, :, slots] = k
        self.kv.v_layers[layer][blocks, :, slots] = v


def writes_into_shared(self, tables):
    for table in tables:
        if table.num_tokens == len(table) * self.kv.block_size:
            table.append(self.kv.allocate_block())


def leaks_the_original(self, tables):
    for table in tables:
        if table and table.num_tokens % self.kv.block_size and self.kv.info(table[-1]).owners > 1:
            source, table[-1] = table[-1], self.kv.allocate_block()
            self.copy(source, table[-1])
    Plain.make_room(self, tables)


def reorders(self, sessions, keys, values):
    Plain.__call__(self, sessions, keys, values)
    sessions.reverse()


def counts_in_each_layer(self, layer, tables, k, v):
    Plain.write(self, layer, tables, k, v)
    for table in tables[: layer + 1]:
        table.num_tokens += 1


ONE_TABLE = differing(
    Plain,
    {
        "no copy": {"copy": lambda self, source, destination: None},
        "copies the other way": {"copy": lambda self, source, to: Plain.copy(self, to, source)},
        "counts in each layer": {"write": counts_in_each_layer},
        "forgets room": {"make_room": lambda self, tables: [self.kv.place([table]) for table in tables if not table]},
        "writes into shared": {"make_room": writes_into_shared},
        "the layer before": {"write": lambda self, n, *what: Plain.write(self, max(n - 1, 0), *what)},
        "swallows exhaustion": {
            "make_room": lambda self, tables: self.kv.can_append(tables) and Plain.make_room(self, tables)
        },
        "leaks the original": {"make_room": leaks_the_original},
        "reorders its inputs": {"__call__": reorders},
    },
)

# -- 063 --------------------------------------------------------------------------------------------------------------


def changes_positions(self, inputs):
    append = Gathered.__call__(self, inputs)
    inputs.context_lens.add_(1)
    return append


def counts_the_token(self, inputs):
    for session in inputs.sessions:
        session.table.num_tokens += 1
    return Gathered.__call__(self, inputs)


def takes_a_block(self, inputs):
    """As if nobody had made room."""
    for session in inputs.sessions:
        if session.table.num_tokens % self.size == 0:
            session.table.append(self.kv.allocate_block())
    return Gathered.__call__(self, inputs)


def keeps_blocks(self, tables, positions):
    kept = vars(self).setdefault("kept", {})
    return kept.setdefault(len(positions), Gathered.blocks(self, tables, positions))


def counts_layers(self, layer_idx, *what):
    """A step that is broken off puts it out of step."""
    self.layer = getattr(self, "layer", -1) + 1
    Gathered.write(self, self.layer % self.kv.num_layers, *what)


BY_TABLE = differing(
    Gathered,
    {
        "the block of the last token": {
            "blocks": lambda self, tables, at: Gathered.blocks(self, tables, (at - 1).clamp(min=0))
        },
        "the position in the session": {"slots": lambda self, positions: positions},
        "rows turned": {
            "write": lambda self, n, blocks, *rest: Gathered.write(self, n, blocks.flip(0), *rest),
        },
        "K and V swapped": {"write": lambda self, n, blocks, slots, k, v: Gathered.write(self, n, blocks, slots, v, k)},
        "halves": {
            "write": lambda self, n, blocks, slots, k, v: Gathered.write(self, n, blocks, slots, k.half().to(k), v)
        },
        "changes positions": {"__call__": changes_positions},
        "counts the token": {"__call__": counts_the_token},
        "takes a block": {"__call__": takes_a_block},
        "keeps blocks": {"blocks": keeps_blocks},
        "counts layers": {"write": counts_layers},
        "eight bits": {"blocks": lambda self, tables, positions: Gathered.blocks(self, tables, positions) & 255},
        "all at once": {"__call__": lambda self, sessions, keys, values: None},
    },
)

# -- 064 --------------------------------------------------------------------------------------------------------------


def trusts_tokens(self, sessions):
    """Whoever sits where they sat has the token that `take` has brought."""
    if self.holds(sessions):
        self.tokens = [session.token_ids[-1] for session in sessions]
    return Rows.plan(self, sessions)


def keeps_the_list(self, chosen, token_ids):
    Rows.take(self, chosen, token_ids)
    self.tokens = token_ids


def knows_lists(self, sessions):
    """A table is known by how its blocks begin."""
    tables = [session.table for session in sessions]
    lists = vars(self).get("lists", []) if self.tables else []
    self.tables = [next((t for t in tables if t[: len(kept)] == kept), None) for kept in lists]
    inputs = Rows.plan(self, sessions)
    self.lists = [list(table) for table in tables]
    return inputs


def compares_lengths(self, tables, ends, changes):
    known = [end if n == len(t) else UNKNOWN for end, n, t in zip(ends, self.num_blocks, tables, strict=True)]
    self.ends = [end if n else UNKNOWN for end, n in zip(known, self.num_blocks, strict=True)]
    Rows._tell_blocks(self, tables, ends, changes)


def moving(move):
    """Rows in which `move(self, to, source)` moves those who sit elsewhere."""

    def assign(self, sessions, tables, changes):
        row_of = {id(table): row for row, table in enumerate(self.tables)}
        stay = [(row, row_of[id(table)]) for row, table in enumerate(tables) if id(table) in row_of]
        before = self.state.clone()
        Rows._assign_rows(self, sessions, tables, changes)
        self.state.copy_(before)
        if any(row != source for row, source in stay):
            move(self, *map(list, zip(*stay, strict=True)))

    return {"_assign_rows": assign}


def the_other_way(self, to, source):
    self.fields[:, source] = self.fields[:, to]
    self.block_tables[source] = self.block_tables[to]


def no_parameters(self, to, source):
    for field in (TOKEN, POSITION):
        self.fields[field, to] = self.fields[field, source]
    self.block_tables[to] = self.block_tables[source]


def uploads_no_parameters(self, changes):
    fields = (TEMPERATURE, TOP_K, TOP_P, KEY)
    Rows._upload(self, {at: x for at, x in changes.items() if at // self.max_rows not in fields})


def samples_for_ever(self, sessions):
    sampled = self.sampling
    inputs = Rows.plan(self, sessions)
    self.sampling |= sampled
    return inputs


def one_too_early(self):
    asked = Rows.asked(self)
    return asked and asked._replace(positions=asked.positions - 1)


def whole_buffers(self, sessions):
    Rows.plan(self, sessions)
    tables = self.block_tables.expand(self.kv.num_layers, -1, -1)
    most = max(session.num_cached_tokens for session in sessions)
    return DecodeInputs(self.fields[TOKEN], self.fields[POSITION], most, tables, sessions)


def numbers_far_apart(self, sessions):
    """A view of a board whose columns are fields."""
    inputs = Rows.plan(self, sessions)
    return replace(inputs, context_lens=torch.stack([inputs.context_lens] * 2, dim=1)[:, 0])


def sorts_the_sessions(self, sessions):
    sessions.sort(key=lambda session: session.num_cached_tokens)
    return Rows.plan(self, sessions)


def swallows_interrupts(self, sessions):
    try:
        return Rows.plan(self, sessions)
    except BaseException:
        self.forget()
        return None


def shares_its_board(self, model, kv, config):
    """All engines write into one tensor."""
    Rows.__init__(self, model, kv, config)
    boards = vars(type(self)).get("boards", [])
    type(self).boards = boards
    self.state = next((board for board in boards if len(board) == len(self.state)), self.state)
    boards.append(self.state)
    end = FIELDS * self.max_rows
    self.fields = self.state[:end].view(FIELDS, self.max_rows)
    self.block_tables = self.state[end:].view(self.max_rows, self.max_blocks)
    self._look()


ROWS = differing(
    Rows,
    {
        "trusts tokens": {"plan": trusts_tokens},
        "keeps the caller's list": {"take": keeps_the_list},
        "takes on the host alone": {"take": lambda self, chosen, token_ids: setattr(self, "tokens", list(token_ids))},
        "advances the first": {"advance": lambda self: self.positions[:1].add_(1)},
        "knows lists": {"plan": knows_lists},
        "compares lengths": {"_tell_blocks": compares_lengths},
        "never moves": moving(lambda self, to, source: None),
        "moves the other way": moving(the_other_way),
        "moves no parameters": moving(no_parameters),
        "uploads no parameters": {"_upload": uploads_no_parameters},
        "samples for ever": {"plan": samples_for_ever},
        "asks before it advances": {"asked": one_too_early},
        "never forgets": {"forget": lambda self: hasattr(self, "tables") or Rows.forget(self)},
        "holds in any order": {
            "holds": lambda self, sessions: {id(s.table) for s in sessions} == {*map(id, self.tables)}
        },
        "whole buffers": {"plan": whole_buffers},
        "numbers far apart": {"plan": numbers_far_apart},
        "returns nothing": {"plan": lambda self, sessions: None},
        "sorts the sessions": {"plan": sorts_the_sessions},
        "swallows interrupts": {"plan": swallows_interrupts},
        "shares its board": {"__init__": shares_its_board},
    },
)

# -- 065 --------------------------------------------------------------------------------------------------------------


def one_slot_too_few(self, cache, old, new):
    cache[:, new, :, :-2] = cache[:, old, :, :-2]


def clears_the_source(self, cache, old, new):
    Indexed.write(self, cache, old, new)
    cache[:, old] = 0


def whole_range(self, cache, old, new):
    """Takes the destinations for a range of neighbours."""
    first = min(int(new.min()), cache.shape[1] - len(new))
    cache[:, first : first + len(new)] = cache[:, old]


def layers_shifted(self, cache, old, new):
    cache[:, new] = cache[:, old].roll(1, dims=0)


def another_pool(self, old, new):
    """Puts another tensor into the place of the keys, of which the layers are no views."""
    self.kv.keys = self.kv.keys.index_copy(1, new, self.kv.keys[:, old])
    self.kv.values = self.kv.values.index_copy(1, new, self.kv.values[:, old])


def rows_mixed(self, copies):
    old, new = Indexed.indices(self, copies)
    return old.flip(0), new


def one_too_many(self, copies):
    """And the block behind the last destination."""
    old, new = Indexed.indices(self, copies)
    return torch.cat([old, old[-1:]]), torch.cat([new, (new[-1:] + 1) % self.kv.num_blocks])


def empties_the_list(self, copies):
    Indexed.__call__(self, copies)
    copies.clear()


def wants_a_copy(self, copies):
    """Cannot take apart an empty list."""
    old, new = zip(*copies, strict=True)
    self.copy(list(old), list(new))


def leaves_the_source(self, copies):
    """Lowers the owners of the source, which `place` has done."""
    Indexed.__call__(self, copies)
    for source, _ in copies:
        self.kv.info(source).owners -= 1


COPIES = differing(
    Indexed,
    {
        "keys alone": {"copy": lambda self, old, new: self.write(self.kv.keys, old, new)},
        "old over new": {"copy": lambda self, old, new: Indexed.copy(self, new, old)},
        "one slot too few": {"write": one_slot_too_few},
        "clears the source": {"write": clears_the_source},
        "the whole range": {"write": whole_range},
        "layers shifted": {"write": layers_shifted},
        "another pool": {"copy": another_pool},
        "rows mixed": {"indices": rows_mixed},
        "one too many": {"indices": one_too_many},
        "the last missing": {
            "indices": lambda self, copies: Indexed.indices(self, copies)[:, : max(1, len(copies) - 1)]
        },
        "no more than eight": {"indices": lambda self, copies: Indexed.indices(self, copies)[:, :8]},
        "empties the list": {"__call__": empties_the_list},
        "wants a copy": {"__call__": wants_a_copy},
        "leaves the source": {"__call__": leaves_the_source},
    },
)

LATER = {"062": ONE_TABLE, "063": BY_TABLE, "064": ROWS, "065": COPIES}
