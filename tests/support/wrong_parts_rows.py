"""Parts of lesson 036 that keep rows otherwise than by the table, each with a list that they take for another."""

import torch

from tests.support.wrong_parts import part_of


class KeptRows:
    """Rows are kept under a key, and built anew when what is compared differs."""

    def __init__(self, model, kv, config):
        self.kv, self.width, self.kept = kv, config.max_blocks, {}

    def __call__(self, sessions):
        out = torch.zeros(self.kv.num_layers, len(sessions), self.width, dtype=torch.int32)
        for layer in range(self.kv.num_layers):
            for b, session in enumerate(sessions):
                ids = session.block_ids_per_layer[layer]
                key, signature = (layer, self.key(b, session, ids)), self.signature(session, ids)
                if self.kept.get(key, (None,))[0] != signature:
                    row = torch.zeros(self.width, dtype=torch.int32)
                    row[: len(ids)] = torch.tensor([i - layer * self.kv.num_blocks for i in ids], dtype=torch.int32)
                    self.kept[key] = signature, row
                out[layer, b] = self.kept[key][1]
        return out


KEYS = {
    "the place in the batch": lambda b, session, ids: b,
    "the session": lambda b, session, ids: session,
    "the session and its place": lambda b, session, ids: (b, session),
    "the session's address": lambda b, session, ids: id(session),
    "the table's address": lambda b, session, ids: id(session.block_ids_per_layer),
    "the list's address": lambda b, session, ids: id(ids),
    "the prompt": lambda b, session, ids: tuple(session.prompt_ids),
    "the first id": lambda b, session, ids: tuple(ids[:1]),
    "both ends": lambda b, session, ids: tuple(ids[:1] + ids[-1:]),
}
SIGNATURES = {
    "length and last id": lambda session, ids: (len(ids), ids[-1:] and ids[-1]),
    "length and ends": lambda session, ids: (len(ids), tuple(ids[:1] + ids[-1:])),
    "length and sum": lambda session, ids: (len(ids), sum(ids)),
    "sum and last id": lambda session, ids: (sum(ids), tuple(ids[-1:])),
    "the ids as a set": lambda session, ids: frozenset(ids),
    "the first layer's list": lambda session, ids: tuple(session.block_ids_per_layer[0]),
}
LAST = "length and last id"
ROWS = [*((key, LAST) for key in KEYS), *(("the session", signature) for signature in SIGNATURES if signature != LAST)]
ROWS += [("the first id", "the ids as a set"), ("both ends", "length and sum")]


def kept_rows(key, signature):
    return type(
        "KeptRows", (KeptRows,), {"key": staticmethod(KEYS[key]), "signature": staticmethod(SIGNATURES[signature])}
    )


class ByPlace(part_of("036")):
    """The course's rows, which are written on from their last block, by the place in the batch."""

    def __init__(self, model, kv, config):
        super().__init__(model, kv, config)
        self.kept = {}

    def __call__(self, sessions):
        for b, session in enumerate(sessions):
            session.block_ids_per_layer.row_cache = self.kept.get(b)
        tables = super().__call__(sessions)
        self.kept |= {b: session.block_ids_per_layer.row_cache for b, session in enumerate(sessions)}
        return tables


class WholeTable(part_of("036")):
    """The whole table, while the batch looks like that of the step before."""

    last = None

    def __call__(self, sessions):
        seen = [(session, [(len(ids), ids[-1:]) for ids in session.block_ids_per_layer]) for session in sessions]
        if self.last is None or self.last[0] != seen:
            self.last = seen, super().__call__(sessions).clone()
        return self.last[1]


class FirstLayerDecides(part_of("036")):
    """The signature of the first layer's list stands for all layers."""

    def get_paged_block_table_row_cpu(self, table, *, layer_idx, offset):
        ids = table[layer_idx]
        cache = table.row_cache = table.row_cache or {}
        if cache.get(layer_idx, (None,))[0] != (len(table[0]), table[0][-1:]):
            row = torch.zeros(self.max_blocks, dtype=torch.int32)
            row[: len(ids)] = torch.tensor([i - offset for i in ids], dtype=torch.int32)
            cache[layer_idx] = (len(table[0]), table[0][-1:]), row
        return cache[layer_idx][1]


class RightWholeTable(part_of("036")):
    """Right, for the tables are compared themselves; one new block, and all rows are built anew."""

    last = None

    def __call__(self, sessions):
        tables = [session.block_ids_per_layer for session in sessions]
        lists = [[tuple(ids) for ids in table] for table in tables]
        if self.last is None or self.last[0] != lists:
            for table in tables:
                table.row_cache = None
            self.last = lists, super().__call__(sessions).clone()
        return self.last[1]
