"""KV appends of lessons 038 to 061 that are right, and have the idea of their lesson in no step, or in some."""

from tests.lab.damage import Wrong
from tests.lab.wrong_appends import CALL, FULL, LATE_K, LATE_V, SOME, WHOLE

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


COSTLY = [
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
    # of whole steps
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
]
