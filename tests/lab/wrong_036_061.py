"""Wrong parts of lessons 036 to 061: a part of the course, and what is changed in its source."""

from tests.lab.damage import Wrong

# The first lesson whose part can have a fault, and another: what is told in the same way in each takes its time.
ALL = SOME_OF_ALL = ("038", "060")
EARLY, LATE = ("038", "059"), ("060", "061")
ROLLING = ("059",)  # the first that makes room in the scan

SCAN = "for b, block_ids in enumerate(block_ids_list):"
FULL = "info.length == self.kv.block_size"
ROOM = "block_ids.append(self.kv.allocate_block(layer_idx, start))"
CALL = "self.write(layer_idx, fast_batch_idx, fast_infos, key_new, value_new)"
SLOW = "self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])"
RAISE = "info.length += 1"
BLOCKS = "[info.block_index for info in infos]"
SLOTS = "[info.length for info in infos]"
STORE_K, STORE_V = "k_layer[blk_t, :, pos_t] = key_new", "v_layer[blk_t, :, pos_t] = value_new"
LATE_K, LATE_V = "k_layer[blk_t, :, slots] = key_new", "v_layer[blk_t, :, slots] = value_new"
SELECT = "key_new, value_new = key_new.index_select(0, idx_t), value_new.index_select(0, idx_t)"
LAYERS = "keys[layer_idx], values[layer_idx])"
KV = "self.kv = kv\n"
WHOLE = "kv_append_triton_full_batch(k_layer, v_layer, key_new, value_new, blk_t, pos0)"
SOME = "kv_append_triton(k_layer, v_layer, key_new, value_new, idx_t, blk_t, pos_t)"

APPEND = [
    # boundaries
    Wrong("off by one: one slot too few", ROLLING, ((FULL, "info.length >= self.kv.block_size - 1"),)),
    Wrong("off by one: one slot too many", ("038", "059", "060"), ((FULL, "info.length > self.kv.block_size"),)),
    Wrong("no first block", SOME_OF_ALL, (("info is None or ", ""),)),
    Wrong("blocks of 64 alone", ("038", "059", "060"), ((FULL, "info.length == 64"),)),
    Wrong("blocks of 4 alone", ROLLING, ((FULL, "info.length == 4"),)),
    Wrong("new block begins at 0", ROLLING, (("start = info.start + info.length if info else 0", "start = 0"),)),
    Wrong(
        "new block begins one late",
        ROLLING,
        (("info.start + info.length if info else 0", "info.start + info.length + 1 if info else 1"),),
    ),
    Wrong(
        "new block of another layer",
        ROLLING,
        ((ROOM, "block_ids.append(self.kv.allocate_block((layer_idx + 1) % self.kv.num_layers, start))"),),
    ),
    Wrong(
        "new block not in the list",
        ROLLING,
        (
            (ROOM, "new = self.kv.allocate_block(layer_idx, start)"),
            ("info = self.kv.info(block_ids[-1])\n            if", "info = self.kv.info(new)\n            if"),
        ),
    ),
    Wrong(
        "block index instead of id",
        ROLLING,
        ((ROOM, "block_ids.append(self.kv.info(self.kv.allocate_block(layer_idx, start)).block_index)"),),
    ),
    Wrong("a block leaks", ROLLING, ((ROOM, "self.kv.allocate_block(layer_idx, start); " + ROOM),)),
    Wrong(
        "the full block is copied",
        ROLLING,
        ((ROOM, "block_ids[-1:] = [self.kv._copy_block(i) for i in block_ids[-1:]]; " + ROOM),),
    ),
    # owners
    Wrong("a shared block is not copied", ("038",), ((" or info.owners > 1", ""),)),
    Wrong("a shared block is not copied, later", ROLLING, (("if info.owners > 1:", "if False:"),)),
    Wrong(
        "owners are forgotten", ROLLING, (("if info.owners > 1:", "info.owners = 1\n            if info.owners > 1:"),)
    ),
    Wrong(
        "a copy that keeps its owner",
        SOME_OF_ALL,
        ((SLOW, "self.kv.info(block_ids_list[b][-1]).owners += 1; " + SLOW),),
    ),
    Wrong(
        "a copy that takes two owners away",
        ROLLING,
        (
            (
                SLOW,
                "self.kv.info(block_ids_list[b][-1]).owners -= self.kv.info(block_ids_list[b][-1]).owners > 2; " + SLOW,
            ),
        ),
    ),
    Wrong(
        "the full block loses its owner",
        ROLLING,
        ((ROOM, "info and setattr(info, 'owners', info.owners - 1); " + ROOM),),
    ),
    # lengths
    Wrong("length not raised", ALL, ((RAISE, "pass"),)),
    Wrong("length raised twice", ALL, ((RAISE, "info.length += 2"),)),
    # sessions
    Wrong("the last session is forgotten", ALL, ((SCAN, "for b, block_ids in enumerate(block_ids_list[:-1]):"),)),
    Wrong("those that are shared are forgotten", ALL, ((SLOW, "pass"),)),
    Wrong("one of those that are shared", SOME_OF_ALL, (("for b in slow_batch_idx:", "for b in slow_batch_idx[:1]:"),)),
    Wrong(
        "the row of another",
        SOME_OF_ALL,
        ((SLOW, "self.kv.append_token(layer_idx, block_ids_list[b], key_new[0], value_new[0])"),),
    ),
    Wrong(
        "the batch reversed",
        SOME_OF_ALL,
        ((CALL, "self.write(layer_idx, fast_batch_idx, fast_infos, key_new.flip(0), value_new.flip(0))"),),
    ),
    Wrong("a single session is not worth it", SOME_OF_ALL, (("if fast_batch_idx:", "if len(fast_batch_idx) > 1:"),)),
    Wrong("whole batches alone are written", ALL, ((CALL, f"len(fast_batch_idx) == len(key_new) and {CALL}"),)),
    # contents
    Wrong("K and V swapped", ALL, ((CALL, "self.write(layer_idx, fast_batch_idx, fast_infos, value_new, key_new)"),)),
    Wrong("K in both caches", EARLY, ((STORE_V, "v_layer[blk_t, :, pos_t] = key_new"),)),
    Wrong("K in both caches, later", ("060",), ((LATE_V, "v_layer[blk_t, :, slots] = key_new"),)),
    Wrong(
        "K in both caches, by a kernel",
        ("061",),
        ((WHOLE, "kv_append_triton_full_batch(k_layer, v_layer, key_new, key_new, blk_t, pos0)"),),
    ),
    Wrong("V is not written", EARLY, ((STORE_V, "value_new"),)),
    Wrong("V is not written, later", ("060",), ((LATE_V, "pass"),)),
    Wrong(
        "one head alone",
        EARLY,
        ((STORE_K + ".index_select(0, idx_t)", "k_layer[blk_t, 0, pos_t] = key_new.index_select(0, idx_t)[:, 0]"),),
    ),
    Wrong("one head alone, later", ("060",), ((LATE_K, "k_layer[blk_t, 0, slots] = key_new[:, 0]"),)),
    Wrong(
        "heads in another order",
        SOME_OF_ALL,
        ((CALL, "self.write(layer_idx, fast_batch_idx, fast_infos, key_new.flip(1), value_new.flip(1))"),),
    ),
    Wrong("the first layer's", SOME_OF_ALL, ((LAYERS, "keys[0], values[0])"),)),
    Wrong(
        "all in the first layer's cache",
        SOME_OF_ALL,
        (("self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx]", "self.kv.k_layers[0], self.kv.v_layers[0]"),),
    ),
    Wrong(
        "through float16",
        SOME_OF_ALL,
        ((CALL, "self.write(layer_idx, fast_batch_idx, fast_infos, key_new.half().to(key_new.dtype), value_new)"),),
    ),
    Wrong("the wrong slot", ALL, ((SLOTS, "[(info.length + 1) % self.kv.block_size for info in infos]"),)),
    Wrong(
        "the next block", SOME_OF_ALL, ((BLOCKS, "[(info.block_index + 1) % self.kv.num_blocks for info in infos]"),)
    ),
    Wrong(
        "the slot of the first for all",
        LATE,
        (("const_pos = all(pos == pos0 for pos in positions)", "const_pos = True"),),
    ),
    Wrong(
        "rows not selected",
        ("060",),
        ((SELECT, "key_new, value_new = key_new[: len(batch_idx)], value_new[: len(batch_idx)]"),),
    ),
    Wrong("every batch is whole", ("060",), (("full_fast = len(batch_idx) == len(key_new)", "full_fast = True"),)),
    # things remembered
    Wrong(
        "the order of the first call",
        ALL,
        ((BLOCKS, "self.__dict__.setdefault('kept', {}).setdefault((layer_idx, len(infos)), " + BLOCKS + ")"),),
    ),
    Wrong(
        "exhaustion is swallowed",
        ROLLING,
        (
            (
                ROOM,
                "try:\n                    " + ROOM + "\n                except Exception:\n                    return",
            ),
        ),
    ),
    Wrong(
        "also a garbage slot",
        SOME_OF_ALL,
        ((CALL, CALL + "; self.kv.k_layers[layer_idx][self.kv._free_block_indices[layer_idx][:1], :, 0] = 0"),),
    ),
    Wrong(
        "also the slot behind",
        SOME_OF_ALL,
        ((CALL, CALL + "; self.kv.v_layers[layer_idx][fast_infos[0].block_index, :, fast_infos[0].length + 1:] = 0"),),
    ),
    # what is not the part's
    Wrong(
        "the manager's method replaced",
        ALL,
        ((KV, KV + "        kv.append_token = lambda *a, real=kv.append_token: real(*a)\n"),),
    ),
    Wrong(
        "the manager's class changed",
        SOME_OF_ALL,
        ((KV, KV + "        KVBlockManager.info = lambda kv, i: kv._block_infos[i]\n"),),
    ),
    Wrong(
        "the step's own count",
        SOME_OF_ALL,
        (
            (RAISE, RAISE + "\n            for s in self.batch: s.num_cached_tokens += 1"),
            ('"""keys, values: for each layer [B, H, D]."""', "self.batch = sessions"),
        ),
    ),
    Wrong("other caches", SOME_OF_ALL, ((KV, KV + "        kv.k_layers = tuple(k.clone() for k in kv.k_layers)\n"),)),
]

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
    Wrong("the length alone is the signature", ONLY, ((SIGNATURE, "new_signature = (len(ids), -1)"),)),
    Wrong("the first block is the signature", ONLY, ((SIGNATURE, "new_signature = (len(ids) > 0, ids[:1])"),)),
    Wrong("never written again", ONLY, (("if new_signature != signature:", "if signature == (-1, -1):"),)),
    Wrong("a copy is not noticed", ONLY, ((START, "start = max(signature[0], 0)"),)),
    Wrong("kept by the session", ONLY, kept_by("session")),
    Wrong("kept by the session's address", ONLY, kept_by("id(session)")),
    Wrong("kept by the table's address", ONLY, kept_by("id(session.block_ids_per_layer)")),
    Wrong("kept by the place in the batch", ONLY, kept_by("sessions.index(session)")),
    Wrong("kept by the last block", ONLY, kept_by("session.block_ids_per_layer[0][-1:].__str__()")),
    Wrong("ids, not indices", ONLY, (("[block_id - offset for", "[block_id for"),)),
    Wrong(
        "the offset of another layer",
        ONLY,
        (("offset = layer_idx * self.kv.num_blocks", "offset = (layer_idx + 1) * self.kv.num_blocks"),),
    ),
    Wrong("one row for all layers", ONLY, (("table.row_cache[layer_idx]\n", "table.row_cache[0]\n"),)),
    Wrong("the first layer's rows", ONLY, (("ids = table[layer_idx]", "ids = [i + offset for i in table[0]]"),)),
    Wrong(
        "the last block is left out", ONLY, (("for block_id in ids[start:]]", "for block_id in ids[start:-1]] + [0]"),)
    ),
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
    Wrong(
        "the last session is forgotten",
        ONLY,
        (("for session in sessions\n", "for session in (*sessions[:-1], sessions[0])\n"),),
    ),
    Wrong("int64", ONLY, ((RETURN, "return self.buffer.to_device().long()"),)),
    Wrong("nothing returned", ONLY, ((RETURN, "self.buffer.to_device()"),)),
    Wrong("a list returned", ONLY, ((RETURN, RETURN + ".tolist()"),)),
    Wrong("sessions before layers", ONLY, ((RETURN, RETURN + ".transpose(0, 1)"),)),
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
    Wrong("the manager's method replaced", ONLY, ((SESSIONS, "self.kv.info = self.kv.info\n        " + SESSIONS),)),
    Wrong(
        "__init__ without arguments",
        ONLY,
        (("def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig)", "def __init__(self)"),),
    ),
    # correct, and no more
    Wrong("rows made anew", ONLY, (("if new_signature != signature:", "if True:"), (START, "start = 0")), True),
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
        "the last layer is left out",
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
        ONLY,
        ((START, "start = 0"), ("ids = table[layer_idx]", "ids = sorted(table[layer_idx])")),
    ),
    Wrong(
        "what is kept is not what is compared",
        ONLY,
        ((START, "start = 0"), ("(row, new_signature)", "(row, signature)")),
        True,
    ),
]

CONSTANT = "all(pos == pos0 for pos in positions)"
SHARED = "or info.owners > 1"
ROLL, COPY = f"if info is None or {FULL}:", "if info.owners > 1:"


def simple_only_if(condition: str) -> tuple[tuple[str, str], ...]:
    """Lesson 038's part with another condition for what is simple."""
    return ((SHARED, f"{SHARED} or not ({condition})"),)


def rolls_only_if(condition: str) -> tuple[tuple[str, str], ...]:
    """The rollover of lesson 059 where a condition holds; else `append_token` does it."""
    return (
        (ROLL, f"if (info is None or {FULL}) and ({condition}):"),
        (COPY, f"if info is None or {FULL} or info.owners > 1:"),
    )


def partial(fault: str, lesson: str, replaced: tuple[tuple[str, str], ...]) -> Wrong:
    return Wrong(fault, (lesson,), replaced, correct=True)


PARTIAL = [
    # lesson 038
    partial("simple in first blocks", "038", (("self.kv.info(block_ids[-1])", "self.kv.info(block_ids[0])"),)),
    partial("the owners of the first block", "038", ((SHARED, "or self.kv.info(block_ids[0]).owners > 1"),)),
    partial(
        "simple if no block is shared", "038", simple_only_if("all(self.kv.info(i).owners == 1 for i in block_ids)")
    ),
    partial("simple in the first layer", "038", simple_only_if("not layer_idx")),
    partial("simple for many", "038", simple_only_if("len(key_new) > 15")),
    partial("simple for even batches", "038", simple_only_if("len(key_new) % 2 == 0")),
    partial("simple for several", "038", simple_only_if("len(key_new) > 1")),
    partial("simple in blocks of 8", "038", simple_only_if("self.kv.block_size == 8")),
    partial(
        "simple for the first 60 calls",
        "038",
        (
            (KV, KV + "        self.calls = 0\n"),
            (SCAN, "self.calls += 1\n        " + SCAN),
            *simple_only_if("self.calls <= 60"),
        ),
    ),
    partial("simple if all lists are as long", "038", simple_only_if("len(set(map(len, block_ids_list))) == 1")),
    partial(
        "simple if nobody is not",
        "038",
        simple_only_if("all(self.kv.info(ids[-1]).owners == 1 for ids in block_ids_list if ids)"),
    ),
    partial("one slot left over", "038", ((FULL, "info.length >= self.kv.block_size - 1"),)),
    # lesson 059
    partial("rolls over in the first layer", "059", rolls_only_if("layer_idx == 0")),
    partial("rolls over from a block", "059", rolls_only_if("info")),
    partial("rolls over from its own block", "059", rolls_only_if("not info or info.owners == 1")),
    partial("rolls over from the first block", "059", rolls_only_if("len(block_ids) < 2")),
    partial(
        "rolls over if all do",
        "059",
        rolls_only_if(
            "all(not ids or self.kv.info(ids[-1]).length in (0, self.kv.block_size) for ids in block_ids_list)"
        ),
    ),
    partial("rolls over alone never", "059", rolls_only_if("len(key_new) > 1")),
    partial("rolls over in larger blocks", "059", rolls_only_if("self.kv.block_size > 1")),
    partial(
        "two stores, for old and for new blocks",
        "059",
        (
            (
                CALL,
                "for new in (False, True):\n"
                "                some = [n for n, i in enumerate(fast_infos) if (i.length == 0) == new]\n"
                "                if some:\n"
                "                    rows, infos = zip(*((fast_batch_idx[n], fast_infos[n]) for n in some))\n"
                "                    self.write(layer_idx, rows, infos, key_new, value_new)",
            ),
        ),
    ),
    # lesson 060
    partial("rows selected by lists", "060", (("key_new.index_select(0, idx_t)", "key_new[batch_idx]"),)),
    partial(
        "whole in the first layer",
        "060",
        (("len(batch_idx) == len(key_new)", "len(batch_idx) == len(key_new) and layer_idx == 0"),),
    ),
    partial("whole if many", "060", (("len(batch_idx) == len(key_new)", "len(batch_idx) == len(key_new) > 8"),)),
    partial("whole if at the same slot", "060", (("if not full_fast:", "if not full_fast or not const_pos:"),)),
    partial("the same slot if whole", "060", (("pos0 if const_pos else", "pos0 if const_pos and full_fast else"),)),
    partial(
        "the same slot of the same block of the list",
        "060",
        (("pos == pos0 for pos in positions", "info.start + info.length == infos[0].start + pos0 for info in infos"),),
    ),
    partial("the same slot but the first", "060", (("pos == pos0 for", "pos0 and pos == pos0 for"),)),
    # lesson 061
    partial(
        "the gate asks for all sessions", "061", (("len(infos) >= self.min_batch:", "len(key_new) >= self.min_batch:"),)
    ),
    partial(
        "one gate for both kernels",
        "061",
        (("len(infos) >= self.min_batch:", "len(infos) >= min(self.min_batch, self.full_batch_min_batch):"),),
    ),
    partial("more than the gate", "061", (("len(infos) >= self.", "len(infos) > self."),)),
]

FITTING = [
    Wrong("no last block", ("038",), ((" if block_ids else None", ""),)),
    Wrong(
        "ids for indices",
        ("038",),
        ((BLOCKS, "[info.layer * self.kv.num_blocks + info.block_index for info in infos]"),),
    ),
    Wrong("a slot behind the last", ("038",), ((FULL, "info.length > self.kv.block_size"),)),
    Wrong("nobody is simple", ("038",), (("if fast_batch_idx:", "if True:"),)),
    Wrong("all rows into some slots", ("038",), ((STORE_K + ".index_select(0, idx_t)", STORE_K),)),
    Wrong(
        "the lists of the first layer",
        ("038",),
        (("session.block_ids_per_layer[layer_idx]", "session.block_ids_per_layer[0]"),),
    ),
    Wrong(
        "infos kept by the block's id",
        ("038",),
        (
            (KV, KV + "        self.kept = {}\n"),
            ("self.kv.info(block_ids[-1])", "self.kept.setdefault(block_ids[-1], self.kv.info(block_ids[-1]))"),
        ),
    ),
    Wrong(
        "heads the other way round",
        ("038",),
        ((CALL, "self.write(layer_idx, fast_batch_idx, fast_infos, key_new.flip(1), value_new.flip(1))"),),
    ),
    Wrong("a length of one too few", ("059",), ((RAISE, "info.length += info.length > 0"),)),
    Wrong("fifteen sessions alone", ("038",), ((SCAN, SCAN.replace("block_ids_list", "block_ids_list[:15]")),)),
    Wrong("the mean slot", ("060",), ((CONSTANT, "sum(positions) == len(infos) * pos0"),)),
    Wrong("a few slots", ("060",), ((CONSTANT, "{*positions[:4], positions[-1]} == {pos0}"),)),
    Wrong(
        "blocks kept by the ends",
        ("060",),
        (
            (KV, KV + "        self.kept = {}\n"),
            (
                BLOCKS,
                "self.kept.setdefault((layer_idx, len(infos), *(infos[n].block_index for n in (0, -1))), "
                + BLOCKS
                + ")",
            ),
        ),
    ),
]

IDEAS = [
    # lesson 061
    Wrong("the whole-batch kernel for some", ("061",), (("and full_fast and", "and"),)),
    Wrong("the whole-batch kernel at other slots", ("061",), (("full_fast and const_pos", "full_fast"),)),
    Wrong(
        "the kernel at the next slot", ("061",), ((WHOLE, WHOLE.replace("pos0", "(pos0 + 1) % self.kv.block_size")),)
    ),
    Wrong("the kernel with rows in the wrong order", ("061",), ((SOME, SOME.replace("idx_t", "idx_t.flip(0)")),)),
    Wrong("the kernel writes K alone", ("061",), ((WHOLE, WHOLE.replace("v_layer", "k_layer")),)),
    Wrong("no return after the kernel", ("061",), (("            return\n", ""),), True),
    Wrong("no kernel for whole batches", ("061",), ((WHOLE, (LATE_K + "; " + LATE_V).replace("slots", "pos0")),), True),
    Wrong(
        "no generic kernel",
        ("061",),
        (
            (
                SOME,
                LATE_K.replace("slots", "pos_t").replace("key_new", "key_new[idx_t]")
                + "; "
                + LATE_V.replace("slots", "pos_t").replace("value_new", "value_new[idx_t]"),
            ),
        ),
        True,
    ),
    Wrong(
        "no gate",
        ("061",),
        (("config.triton_kv_append_min_batch", "3"), ("config.triton_kv_append_full_batch_min_batch or ", "")),
        True,
    ),
    # correct, and no more
    Wrong("one by one", ("038",), (("or info.owners > 1", "or True"),), True),
    Wrong(
        "one by one, in a method of its own",
        ("038", "059"),
        (
            (
                CALL,
                "for b, i in zip(fast_batch_idx, fast_infos):\n                self.write(layer_idx, [b], [i], "
                "key_new, value_new)",
            ),
        ),
        True,
    ),
    Wrong(
        "rollover one by one",
        ROLLING,
        (
            ("info is None or " + FULL + ":", "False:\n                start = 0"),
            ("if info.owners > 1:", "if info is None or info.owners > 1 or " + FULL + ":"),
        ),
        True,
    ),
    Wrong("rows always selected", ("060",), (("if not full_fast:", "if True:"),), True),
    Wrong("slots always as a tensor", ("060",), (("pos0 if const_pos else ", ""),), True),
]

WRONG = [*TABLES, *APPEND, *IDEAS, *PARTIAL, *FITTING]
