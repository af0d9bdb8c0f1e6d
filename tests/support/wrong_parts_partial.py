"""Parts that are right and have their lesson's idea in some steps only, and faults whose "Perhaps" has to fit."""

from tests.support.wrong_parts import Wrong
from tests.support.wrong_parts_append import BLOCKS, CALL, FULL, KV, RAISE, SCAN, STORE_K

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
    partial(
        "simple in first blocks",
        "038",
        (("self.kv.info(block_ids[-1])", "self.kv.info(block_ids[0])"),),
    ),
    partial(
        "the owners of the first block",
        "038",
        ((SHARED, "or self.kv.info(block_ids[0]).owners > 1"),),
    ),
    partial(
        "simple if no block is shared",
        "038",
        simple_only_if("all(self.kv.info(i).owners == 1 for i in block_ids)"),
    ),
    partial("simple in the first layer", "038", simple_only_if("not layer_idx")),
    partial(
        "simple for many",
        "038",
        simple_only_if("len(key_new) > 15"),
    ),
    partial("simple for even batches", "038", simple_only_if("len(key_new) % 2 == 0")),
    partial("simple for several", "038", simple_only_if("len(key_new) > 1")),
    partial(
        "simple in blocks of 8",
        "038",
        simple_only_if("self.kv.block_size == 8"),
    ),
    partial(
        "simple for the first 60 calls",
        "038",
        (
            (KV, KV + "        self.calls = 0\n"),
            (SCAN, "self.calls += 1\n        " + SCAN),
            *simple_only_if("self.calls <= 60"),
        ),
    ),
    partial(
        "simple if all lists are as long",
        "038",
        simple_only_if("len(set(map(len, block_ids_list))) == 1"),
    ),
    partial(
        "simple if nobody is not",
        "038",
        simple_only_if("all(self.kv.info(ids[-1]).owners == 1 for ids in block_ids_list if ids)"),
    ),
    partial(
        "one slot left over",
        "038",
        ((FULL, "info.length >= self.kv.block_size - 1"),),
    ),
    # lesson 059
    partial(
        "rolls over in the first layer",
        "059",
        rolls_only_if("layer_idx == 0"),
    ),
    partial("rolls over from a block", "059", rolls_only_if("info")),
    partial(
        "rolls over from its own block",
        "059",
        rolls_only_if("not info or info.owners == 1"),
    ),
    partial(
        "rolls over from the first block",
        "059",
        rolls_only_if("len(block_ids) < 2"),
    ),
    partial(
        "rolls over if all do",
        "059",
        rolls_only_if(
            "all(not ids or self.kv.info(ids[-1]).length in (0, self.kv.block_size) for ids in block_ids_list)"
        ),
    ),
    partial("rolls over alone never", "059", rolls_only_if("len(key_new) > 1")),
    partial(
        "rolls over in larger blocks",
        "059",
        rolls_only_if("self.kv.block_size > 1"),
    ),
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
    partial(
        "rows selected by lists",
        "060",
        (("key_new.index_select(0, idx_t)", "key_new[batch_idx]"),),
    ),
    partial(
        "whole in the first layer",
        "060",
        (("len(batch_idx) == len(key_new)", "len(batch_idx) == len(key_new) and layer_idx == 0"),),
    ),
    partial(
        "whole if many",
        "060",
        (("len(batch_idx) == len(key_new)", "len(batch_idx) == len(key_new) > 8"),),
    ),
    partial(
        "whole if at the same slot",
        "060",
        (("if not full_fast:", "if not full_fast or not const_pos:"),),
    ),
    partial(
        "the same slot if whole",
        "060",
        (("pos0 if const_pos else", "pos0 if const_pos and full_fast else"),),
    ),
    partial(
        "the same slot of the same block of the list",
        "060",
        (("pos == pos0 for pos in positions", "info.start + info.length == infos[0].start + pos0 for info in infos"),),
    ),
    partial(
        "the same slot but the first",
        "060",
        (("pos == pos0 for", "pos0 and pos == pos0 for"),),
    ),
    # lesson 061
    partial(
        "the gate asks for all sessions",
        "061",
        (("len(infos) >= self.min_batch:", "len(key_new) >= self.min_batch:"),),
    ),
    partial(
        "one gate for both kernels",
        "061",
        (("len(infos) >= self.min_batch:", "len(infos) >= min(self.min_batch, self.full_batch_min_batch):"),),
    ),
    partial(
        "more than the gate",
        "061",
        (("len(infos) >= self.", "len(infos) > self."),),
    ),
]

FITTING = [
    Wrong(
        "no last block",
        ("038",),
        ((" if block_ids else None", ""),),
    ),
    Wrong(
        "ids for indices",
        ("038",),
        ((BLOCKS, "[info.layer * self.kv.num_blocks + info.block_index for info in infos]"),),
    ),
    Wrong(
        "a slot behind the last",
        ("038",),
        ((FULL, "info.length > self.kv.block_size"),),
    ),
    Wrong(
        "nobody is simple",
        ("038",),
        (("if fast_batch_idx:", "if True:"),),
    ),
    Wrong(
        "all rows into some slots",
        ("038",),
        ((STORE_K + ".index_select(0, idx_t)", STORE_K),),
    ),
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
    Wrong(
        "a length of one too few",
        ("059",),
        ((RAISE, "info.length += info.length > 0"),),
    ),
    Wrong(
        "fifteen sessions alone",
        ("038",),
        ((SCAN, SCAN.replace("block_ids_list", "block_ids_list[:15]")),),
    ),
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
