"""Wrong parts of the kind `block_tables`, lesson 036."""

from tests.support.wrong_parts import Wrong

ONLY = ("036",)
CACHE = "if table.row_cache is None:"
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
    Wrong(
        "the length alone is the signature",
        r"stale: this is the session's row of an earlier step",
        ONLY,
        ((SIGNATURE, "new_signature = (len(ids), -1)"),),
    ),
    Wrong(
        "the first block is the signature", r"stale: ", ONLY, ((SIGNATURE, "new_signature = (len(ids) > 0, ids[:1])"),)
    ),
    Wrong("never written again", r"stale: ", ONLY, (("if new_signature != signature:", "if signature == (-1, -1):"),)),
    Wrong(
        "a copy is not noticed",
        r"stale: the last block is new, or was replaced by a copy|stale: this is",
        ONLY,
        ((START, "start = max(signature[0], 0)"),),
    ),
    Wrong("kept by the session", r"computed again[^$]*not renewed", ONLY, kept_by("session")),
    Wrong("kept by the session's address", r"stale", ONLY, kept_by("id(session)")),
    Wrong(
        "kept by the table's address",
        r"another session in the place of one that has gone[^$]*stale|stale[^$]*in the place of one that has gone",
        ONLY,
        kept_by("id(session.block_ids_per_layer)"),
    ),
    Wrong(
        "kept by the place in the batch",
        r"this is the row of sessions\[\d\]|stale: ",
        ONLY,
        kept_by("sessions.index(session)"),
    ),
    Wrong(
        "kept by the last block", r"stale|old entries", ONLY, kept_by("session.block_ids_per_layer[0][-1:].__str__()")
    ),
    Wrong(
        "ids, not indices",
        r"layer 1, session A[^$]*id - layer × num_blocks",
        ONLY,
        (("[block_id - offset for", "[block_id for"),),
    ),
    Wrong(
        "the offset of another layer",
        r"the table says -16; it must be block 24[^$]*id - layer × num_blocks",
        ONLY,
        (("offset = layer_idx * self.kv.num_blocks", "offset = (layer_idx + 1) * self.kv.num_blocks"),),
    ),
    Wrong(
        "one row for all layers",
        r"this is the session's row of layer 1",
        ONLY,
        (("table.row_cache[layer_idx]\n", "table.row_cache[0]\n"),),
    ),
    Wrong(
        "the first layer's rows",
        r"layer 1, session A[^$]*this is the session's row of layer 0",
        ONLY,
        (("ids = table[layer_idx]", "ids = [i + offset for i in table[0]]"),),
    ),
    Wrong(
        "the last block is left out",
        r"logical block \d: the table says 0; it must be block",
        ONLY,
        (("for block_id in ids[start:]]", "for block_id in ids[start:-1]] + [0]"),),
    ),
    Wrong(
        "-1 past the end",
        r"logical block 1: the table says -1; it must be 0[^$]*past the end",
        ONLY,
        (("torch.zeros(self.kv.num_layers, self.max_blocks", "torch.full((self.kv.num_layers, self.max_blocks), -1"),),
    ),
    Wrong(
        "sessions in another order",
        r"this is the row of sessions\[\d\]",
        ONLY,
        (("for session in sessions\n", "for session in sorted(sessions, key=lambda s: s.num_cached_tokens)\n"),),
    ),
    Wrong(
        "the last session is forgotten",
        r"session [A-Z], logical block|raised RuntimeError",
        ONLY,
        (("for session in sessions\n", "for session in (*sessions[:-1], sessions[0])\n"),),
    ),
    Wrong(
        "int64",
        r"returned a tensor of torch.int64; the forward reads a torch.int32",
        ONLY,
        ((RETURN, "return self.buffer.to_device().long()"),),
    ),
    Wrong(
        "nothing returned",
        r"returned nothing \(None\): is there a `return`\?",
        ONLY,
        ((RETURN, "self.buffer.to_device()"),),
    ),
    Wrong("a list returned", r"returned an object of list", ONLY, ((RETURN, RETURN + ".tolist()"),)),
    Wrong(
        "sessions before layers",
        r"returned a tensor \[1, 2, 8\]; the forward reads .* \[2, 1, 8\]",
        ONLY,
        ((RETURN, RETURN + ".transpose(0, 1)"),),
    ),
    Wrong(
        "as wide as the longest list",
        r"returned a tensor \[2, 1, 1\]",
        ONLY,
        ((RETURN, RETURN + "[:, :, : max(len(s.block_ids_per_layer[0]) for s in sessions)]"),),
    ),
    Wrong(
        "one buffer for all engines",
        r"tables of two engines at once[^$]*returned earlier by another part",
        ONLY,
        (
            ("self.buffer = StagingBuffer(", "self.buffer = vars(StagingBuffer).get('one') or StagingBuffer("),
            (SESSIONS, "StagingBuffer.one = self.buffer\n        " + SESSIONS),
        ),
    ),
    Wrong(
        "lists padded in place",
        r"the part changed the block lists of session A: it is only to read them",
        ONLY,
        ((SESSIONS, "[ids.append(0) for s in sessions for ids in s.block_ids_per_layer[:1]]\n        " + SESSIONS),),
    ),
    Wrong(
        "the manager's method replaced",
        r"the part replaced kv\.info",
        ONLY,
        ((SESSIONS, "self.kv.info = self.kv.info\n        " + SESSIONS),),
    ),
    Wrong(
        "__init__ without arguments",
        r"BlockTables.__init__ cannot be called: .*def __init__\(self, model, kv, config\)",
        ONLY,
        (("def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig)", "def __init__(self)"),),
    ),
    # correct, and no more
    Wrong(
        "rows made anew",
        r"Correct, but still 480 block ids, last ones of lists not counted, put into rows that had shown them before "
        "in a step of 16 sessions whose",
        ONLY,
        (("if new_signature != signature:", "if True:"), (START, "start = 0")),
        True,
    ),
    Wrong(
        "tensors made anew",
        r"Correct, but still 96 tensors built from Python lists",
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
        r"Correct, but still \d+ NumPy arrays built from Python lists",
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
        "the last layer is left out",
        r"layer 1, session A, logical block 0: the table says 0; [^$]*  Perhaps:  nothing was written for layer 1\n",
        ONLY,
        (
            (
                "for layer_idx in range(self.kv.num_layers):",
                "block_tables_cpu.zero_()\n        for layer_idx in range(1):",
            ),
        ),
    ),
    Wrong(
        "ids in order of their numbers",
        r"Perhaps:  the right blocks, in another order",
        ONLY,
        (
            (START, "start = 0"),
            ("ids = table[layer_idx]", "ids = sorted(table[layer_idx])"),
        ),
    ),
    Wrong(
        "what is kept is not what is compared",
        r"Perhaps:  rows are kept, but no kept signature was ever equal: is what is stored what is compared\?",
        ONLY,
        ((START, "start = 0"), ("(row, new_signature)", "(row, signature)")),
        True,
    ),
]
