"""Wrong block tables, lesson 036, and right ones without its idea."""

from tests.lab.damage import Wrong

ONLY = ("036",)
SIGNATURE = "new_signature = (len(ids), ids[-1] if ids else -1)"
START = "start = max(signature[0] - 1, 0)"
WRITE = "row.numpy()[start : len(ids)] = [block_id - offset for block_id in ids[start:]]"
BY_SESSION = "self.get_paged_block_table_row_cpu(session.block_ids_per_layer, layer_idx"
RETURN = "return self.buffer.to_device()"
MAX = "self.max_blocks = config.max_blocks\n"
SESSIONS = "block_tables_cpu = self.buffer.host("


def kept_by(key: str) -> tuple[tuple[str, str], ...]:
    """Rows that are kept by `key` and not by the table."""
    return (
        (MAX, MAX + "        self.kept = {}\n"),
        (BY_SESSION, f"self.of({key}, session.block_ids_per_layer, layer_idx"),
        (
            "    def get_paged",
            "    def of(self, key, table, **where):\n"
            "        table.row_cache = self.kept.get(key)\n"
            "        row = self.get_paged_block_table_row_cpu(table, **where)\n"
            "        self.kept[key] = table.row_cache\n"
            "        return row\n\n    def get_paged",
        ),
    )


TABLES = [
    Wrong("the length alone is the signature", ONLY, ((SIGNATURE, "new_signature = (len(ids), -1)"),)),
    Wrong("a copy is not noticed", ONLY, ((START, "start = max(signature[0], 0)"),)),
    Wrong("the newest entry alone is written", ONLY, ((WRITE, "row[len(ids) - 1] = ids[-1] - offset"),)),
    Wrong("kept by the session", ONLY, kept_by("session")),
    Wrong("kept by the table's address", ONLY, kept_by("id(session.block_ids_per_layer)")),
    Wrong("kept by the place in the batch", ONLY, kept_by("sessions.index(session)")),
    Wrong("kept by the last block", ONLY, kept_by("session.block_ids_per_layer[0][-1:].__str__()")),
    Wrong("one row for all layers", ONLY, (("table.row_cache[layer_idx]\n", "table.row_cache[0]\n"),)),
    Wrong(
        "-1 past the end",
        ONLY,
        (("torch.zeros(self.kv.num_layers, self.max_blocks", "torch.full((self.kv.num_layers, self.max_blocks), -1"),),
    ),
    Wrong(
        "sessions in another order",
        ONLY,
        (("for session in sessions\n", "for session in sorted(sessions, key=lambda s: s.num_cached_tokens)\n"),),
    ),
    Wrong("int64", ONLY, ((RETURN, "return self.buffer.to_device().long()"),)),
    Wrong("nothing returned", ONLY, ((RETURN, "self.buffer.to_device()"),)),
    Wrong(
        "as wide as the longest list",
        ONLY,
        ((RETURN, RETURN + "[:, :, : max(len(s.block_ids_per_layer[0]) for s in sessions)]"),),
    ),
    Wrong(
        "one buffer for all engines",
        ONLY,
        (
            ("self.buffer = StagingBuffer(", "self.buffer = vars(StagingBuffer).get('one') or StagingBuffer("),
            (SESSIONS, "StagingBuffer.one = self.buffer\n        " + SESSIONS),
        ),
    ),
    Wrong(
        "lists padded in place",
        ONLY,
        ((SESSIONS, "[ids.append(0) for s in sessions for ids in s.block_ids_per_layer[:1]]\n        " + SESSIONS),),
    ),
    # correct, and no more
    Wrong(
        "tensors made anew",
        ONLY,
        (
            ("if new_signature != signature:", "if True:"),
            (START, "start = 0"),
            (WRITE, "row[:len(ids)] = torch.tensor(ids) - offset"),
        ),
        True,
    ),
    Wrong(
        "arrays made anew",
        ONLY,
        (
            ("if new_signature != signature:", "if True:"),
            (START, "start = 0"),
            (WRITE, "row[:len(ids)] = torch.from_numpy(__import__('numpy').array(ids)) - offset"),
        ),
        True,
    ),
    # what is likely
    Wrong(
        "what is kept is not what is compared",
        ONLY,
        ((START, "start = 0"), ("(row, new_signature)", "(row, signature)")),
        True,
    ),
]
