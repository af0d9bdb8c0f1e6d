"""Wrong KV appends, lessons 038 to 061: a part of the course, and what is changed in its source."""

from tests.lab.damage import Wrong

# One lesson whose part can have a fault: what is told in the same way in each takes its time.
ALL, LATE = ("060",), ("060", "061")
ROLLING = ("059",)  # the first that makes room in the scan

SCAN = "for b, block_ids in enumerate(block_ids_list):"
FULL = "info.length == self.kv.block_size"
ROOM = "block_ids.append(self.kv.allocate_block(layer_idx, start))"
CALL = "self.write(layer_idx, fast_batch_idx, fast_infos, key_new, value_new)"
SLOW = "self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])"
RAISE = "info.length += 1"
BLOCKS = "[info.block_index for info in infos]"
SLOTS = "[info.length for info in infos]"
LATE_K, LATE_V = "k_layer[blk_t, :, slots] = key_new", "v_layer[blk_t, :, slots] = value_new"
SELECT = "key_new, value_new = key_new.index_select(0, idx_t), value_new.index_select(0, idx_t)"
LAYERS = "keys[layer_idx], values[layer_idx])"
KV = "self.kv = kv\n"
WHOLE = "kv_append_triton_full_batch(k_layer, v_layer, key_new, value_new, blk_t, pos0)"
SOME = "kv_append_triton(k_layer, v_layer, key_new, value_new, idx_t, blk_t, pos_t)"
CONSTANT = "all(pos == pos0 for pos in positions)"

APPENDS = [
    # boundaries
    Wrong("off by one: one slot too few", ROLLING, ((FULL, "info.length >= self.kv.block_size - 1"),)),
    Wrong("off by one: one slot too many", ROLLING, ((FULL, "info.length > self.kv.block_size"),)),
    Wrong("no first block", ALL, (("info is None or ", ""),)),
    Wrong("new block begins at 0", ROLLING, (("start = info.start + info.length if info else 0", "start = 0"),)),
    Wrong(
        "new block of another layer",
        ROLLING,
        ((ROOM, "block_ids.append(self.kv.allocate_block((layer_idx + 1) % self.kv.num_layers, start))"),),
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
    Wrong(
        "a copy that keeps its owner",
        ALL,
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
    # lengths
    Wrong("length not raised", ALL, ((RAISE, "pass"),)),
    # sessions
    Wrong("the last session is forgotten", ALL, ((SCAN, "for b, block_ids in enumerate(block_ids_list[:-1]):"),)),
    Wrong("one of those that are shared", ALL, (("for b in slow_batch_idx:", "for b in slow_batch_idx[:1]:"),)),
    Wrong(
        "the row of another",
        ALL,
        ((SLOW, "self.kv.append_token(layer_idx, block_ids_list[b], key_new[0], value_new[0])"),),
    ),
    Wrong("whole batches alone are written", ALL, ((CALL, f"len(fast_batch_idx) == len(key_new) and {CALL}"),)),
    # contents
    Wrong("K and V swapped", ALL, ((CALL, "self.write(layer_idx, fast_batch_idx, fast_infos, value_new, key_new)"),)),
    Wrong(
        "K in both caches, by a kernel",
        ("061",),
        ((WHOLE, "kv_append_triton_full_batch(k_layer, v_layer, key_new, key_new, blk_t, pos0)"),),
    ),
    Wrong("V is not written, later", ("060",), ((LATE_V, "pass"),)),
    Wrong("one head alone, later", ("060",), ((LATE_K, "k_layer[blk_t, 0, slots] = key_new[:, 0]"),)),
    Wrong("the first layer's", ALL, ((LAYERS, "keys[0], values[0])"),)),
    Wrong(
        "through float16",
        ALL,
        ((CALL, "self.write(layer_idx, fast_batch_idx, fast_infos, key_new.half().to(key_new.dtype), value_new)"),),
    ),
    Wrong("the wrong slot", ALL, ((SLOTS, "[(info.length + 1) % self.kv.block_size for info in infos]"),)),
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
        ALL,
        ((CALL, CALL + "; self.kv.k_layers[layer_idx][self.kv._free_block_indices[layer_idx][:1], :, 0] = 0"),),
    ),
    Wrong(
        "also the slot behind",
        ALL,
        ((CALL, CALL + "; self.kv.v_layers[layer_idx][fast_infos[0].block_index, :, fast_infos[0].length + 1:] = 0"),),
    ),
    # what is not the part's
    Wrong(
        "the step's own count",
        ALL,
        (
            (RAISE, RAISE + "\n            for s in self.batch: s.num_cached_tokens += 1"),
            ('"""keys, values: for each layer [B, H, D]."""', "self.batch = sessions"),
        ),
    ),
    Wrong("other caches", ALL, ((KV, KV + "        kv.k_layers = tuple(k.clone() for k in kv.k_layers)\n"),)),
    # what is likely
    Wrong(
        "infos kept by the block's id",
        ("038",),
        (
            (KV, KV + "        self.kept = {}\n"),
            ("self.kv.info(block_ids[-1])", "self.kept.setdefault(block_ids[-1], self.kv.info(block_ids[-1]))"),
        ),
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
    # kernels
    Wrong("the whole-batch kernel for some", ("061",), (("and full_fast and", "and"),)),
    Wrong("the whole-batch kernel at other slots", ("061",), (("full_fast and const_pos", "full_fast"),)),
    Wrong(
        "the kernel at the next slot", ("061",), ((WHOLE, WHOLE.replace("pos0", "(pos0 + 1) % self.kv.block_size")),)
    ),
    Wrong("the kernel with rows in the wrong order", ("061",), ((SOME, SOME.replace("idx_t", "idx_t.flip(0)")),)),
    Wrong("the kernel writes K alone", ("061",), ((WHOLE, WHOLE.replace("v_layer", "k_layer")),)),
]
