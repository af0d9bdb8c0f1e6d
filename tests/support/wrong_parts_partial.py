"""Parts that are right and have their lesson's idea in some steps only, and faults whose "Perhaps" has to fit."""

from tests.support.wrong_parts import Wrong
from tests.support.wrong_parts_append import BLOCKS, CALL, FULL, KV, RAISE, SCAN, STORE_K

CONSTANT = "all(pos == pos0 for pos in positions)"
OTHER_SLOT = r"was never written[^$]*the right numbers went to another slot"
SHARED = "or info.owners > 1"
ROLL, COPY = f"if info is None or {FULL}:", "if info.owners > 1:"
CALLS = r"still \d+ append_token calls in a step of "
COPIES = r"still \d+ copies of rows of K and V, by index_select or the like in a step of "
INDICES = r"still \d+ index tensors built in a step of "
WRITES = r"still \d+ writes of K and V without a Triton kernel in a step of "


def simple_only_if(condition: str) -> tuple[tuple[str, str], ...]:
    """Lesson 038's part with another condition for what is simple."""
    return ((SHARED, f"{SHARED} or not ({condition})"),)


def rolls_only_if(condition: str) -> tuple[tuple[str, str], ...]:
    """The rollover of lesson 059 where a condition holds; else `append_token` does it."""
    return (
        (ROLL, f"if (info is None or {FULL}) and ({condition}):"),
        (COPY, f"if info is None or {FULL} or info.owners > 1:"),
    )


def partial(fault: str, says: str, lesson: str, replaced: tuple[tuple[str, str], ...]) -> Wrong:
    return Wrong(fault, says, (lesson,), replaced, correct=True)


PARTIAL = [
    # lesson 038
    partial(
        "simple in first blocks",
        CALLS + "16 sessions inside their blocks;",
        "038",
        (("self.kv.info(block_ids[-1])", "self.kv.info(block_ids[0])"),),
    ),
    partial(
        "the owners of the first block",
        CALLS + "16 sessions inside their blocks, behind a full one that all share",
        "038",
        ((SHARED, "or self.kv.info(block_ids[0]).owners > 1"),),
    ),
    partial(
        "simple if no block is shared",
        CALLS + "16 sessions inside their blocks, behind",
        "038",
        simple_only_if("all(self.kv.info(i).owners == 1 for i in block_ids)"),
    ),
    partial(
        "simple in the first layer", CALLS + "16 sessions inside their blocks;", "038", simple_only_if("not layer_idx")
    ),
    partial(
        "simple for many",
        CALLS + "7 sessions .* others than in the step before",
        "038",
        simple_only_if("len(key_new) > 15"),
    ),
    partial("simple for even batches", CALLS + "7 sessions", "038", simple_only_if("len(key_new) % 2 == 0")),
    partial("simple for several", CALLS + "1 session inside its block", "038", simple_only_if("len(key_new) > 1")),
    partial(
        "simple in blocks of 8",
        CALLS + "9 sessions inside their blocks of 16 slots",
        "038",
        simple_only_if("self.kv.block_size == 8"),
    ),
    partial(
        "simple for the first 60 calls",
        CALLS + "2 sessions inside their blocks, after 49 steps",
        "038",
        (
            (KV, KV + "        self.calls = 0\n"),
            (SCAN, "self.calls += 1\n        " + SCAN),
            *simple_only_if("self.calls <= 60"),
        ),
    ),
    partial(
        "simple if all lists are as long",
        CALLS + "16 sessions inside their blocks;",
        "038",
        simple_only_if("len(set(map(len, block_ids_list))) == 1"),
    ),
    partial(
        "simple if nobody is not",
        CALLS + "16 sessions inside their blocks, 2 of which are shared",
        "038",
        simple_only_if("all(self.kv.info(ids[-1]).owners == 1 for ids in block_ids_list if ids)"),
    ),
    partial(
        "one slot left over",
        CALLS + r"16 sessions inside their blocks; [^$]*\n  Perhaps:  a block with one free slot is simple too",
        "038",
        ((FULL, "info.length >= self.kv.block_size - 1"),),
    ),
    # lesson 059
    partial(
        "rolls over in the first layer",
        CALLS + "16 sessions whose last blocks are full;",
        "059",
        rolls_only_if("layer_idx == 0"),
    ),
    partial("rolls over from a block", CALLS + "7 sessions without any block yet", "059", rolls_only_if("info")),
    partial(
        "rolls over from its own block",
        CALLS + "16 sessions whose last blocks are full, 2 of them shared",
        "059",
        rolls_only_if("not info or info.owners == 1"),
    ),
    partial(
        "rolls over from the first block",
        CALLS + "16 sessions .*full, 2 of them shared",
        "059",
        rolls_only_if("len(block_ids) < 2"),
    ),
    partial(
        "rolls over if all do",
        CALLS + "16 sessions of whose last blocks half are full",
        "059",
        rolls_only_if(
            "all(not ids or self.kv.info(ids[-1]).length in (0, self.kv.block_size) for ids in block_ids_list)"
        ),
    ),
    partial(
        "rolls over alone never", CALLS + "1 session whose last block is full", "059", rolls_only_if("len(key_new) > 1")
    ),
    partial(
        "rolls over in larger blocks",
        CALLS + "7 sessions with blocks of one slot",
        "059",
        rolls_only_if("self.kv.block_size > 1"),
    ),
    partial(
        "two stores, for old and for new blocks",
        r"still 24 stores of K and V in a step of 16 sessions of whose last blocks half are full",
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
        r"still \d+ index tensors [^$]*Perhaps:  each indexing by a Python list builds a tensor: build",
        "060",
        (("key_new.index_select(0, idx_t)", "key_new[batch_idx]"),),
    ),
    partial(
        "whole in the first layer",
        COPIES + "16 sessions at the same slot;",
        "060",
        (("len(batch_idx) == len(key_new)", "len(batch_idx) == len(key_new) and layer_idx == 0"),),
    ),
    partial(
        "whole if many",
        COPIES + "5 sessions",
        "060",
        (("len(batch_idx) == len(key_new)", "len(batch_idx) == len(key_new) > 8"),),
    ),
    partial(
        "whole if at the same slot",
        COPIES + "16 sessions inside their blocks;",
        "060",
        (("if not full_fast:", "if not full_fast or not const_pos:"),),
    ),
    partial(
        "the same slot if whole",
        INDICES + "16 sessions at the same slot, 2 of them in shared blocks",
        "060",
        (("pos0 if const_pos else", "pos0 if const_pos and full_fast else"),),
    ),
    partial(
        "the same slot of the same block of the list",
        INDICES + "16 sessions at the same slot of first, second and third blocks",
        "060",
        (("pos == pos0 for pos in positions", "info.start + info.length == infos[0].start + pos0 for info in infos"),),
    ),
    partial(
        "the same slot but the first",
        INDICES + "16 sessions whose last blocks are full",
        "060",
        (("pos == pos0 for", "pos0 and pos == pos0 for"),),
    ),
    # lesson 061
    partial(
        "the gate asks for all sessions",
        r"still 2 Triton kernels launched in a step of 5 sessions at the same slot, one of them in a shared block",
        "061",
        (("n >= self.min_batch:", "len(key_new) >= self.min_batch:"),),
    ),
    partial(
        "one gate for both kernels",
        r"still 2 Triton kernels launched in a step of 4 sessions inside their blocks, with a threshold of 5, and of 4",
        "061",
        (("n >= self.min_batch:", "n >= min(self.min_batch, self.full_batch_min_batch):"),),
    ),
    partial(
        "more than the gate",
        WRITES + "4 sessions at the same slot, with both thresholds",
        "061",
        (("n >= self.", "n > self."),),
    ),
]

FITTING = [
    Wrong(
        "no last block",
        r"list index out of range\n.*block_ids\[-1\][^$]*\n  Perhaps:  a new session's block list is empty",
        ("038",),
        ((" if block_ids else None", ""),),
    ),
    Wrong(
        "ids for indices",
        r"index (\d+) is out of bounds for dimension 0 [^$]*\n  Perhaps:  perhaps \1 is a block's id; .*info.block_",
        ("038",),
        ((BLOCKS, "[info.layer * self.kv.num_blocks + info.block_index for info in infos]"),),
    ),
    Wrong(
        "a slot behind the last",
        r"size 4\n[^$]*\n  Perhaps:  the block is full: the slot must be less than block_size, 4",
        ("038",),
        ((FULL, "info.length > self.kv.block_size"),),
    ),
    Wrong(
        "nobody is simple",
        r"Expected dtype int32 or int64 for index\n[^$]*\n  Perhaps:  a tensor of an empty list is float: where",
        ("038",),
        (("if fast_batch_idx:", "if True:"),),
    ),
    Wrong(
        "all rows into some slots",
        r"shape mismatch[^$]*\n  Perhaps:  K and V are those of the whole batch: only the rows `batch_idx` go into",
        ("038",),
        ((STORE_K + ".index_select(0, idx_t)", STORE_K),),
    ),
    Wrong(
        "the lists of the first layer",
        r"counts 3 tokens; 2 are to .*\n.*raised for layer 1, too: the lists of layer 0 were given for that one",
        ("038",),
        (("session.block_ids_per_layer[layer_idx]", "session.block_ids_per_layer[0]"),),
    ),
    Wrong(
        "infos kept by the block's id",
        r"blocks that others had before[^$]*right if the part is made anew for each call: it remembers something",
        ("038",),
        (
            (KV, KV + "        self.kept = {}\n"),
            ("self.kv.info(block_ids[-1])", "self.kept.setdefault(block_ids[-1], self.kv.info(block_ids[-1]))"),
        ),
    ),
    Wrong(
        "heads the other way round",
        r"holds the K of session A, layer 0, head 1[^$]*slot:     1 of block 24 of layer 0\n[^$]*heads are mixed up",
        ("038",),
        ((CALL, "self.write(layer_idx, fast_batch_idx, fast_infos, key_new.flip(1), value_new.flip(1))"),),
    ),
    Wrong(
        "a length of one too few",
        r"counts 0 tokens; 1 is to be in it",
        ("059",),
        ((RAISE, "info.length += info.length > 0"),),
    ),
    Wrong(
        "fifteen sessions alone",
        r"everything is right up to 15 sessions in a step, and wrong from 16 on",
        ("038",),
        ((SCAN, SCAN.replace("block_ids_list", "block_ids_list[:15]")),),
    ),
    Wrong("the mean slot", OTHER_SLOT, ("060",), ((CONSTANT, "sum(positions) == len(infos) * pos0"),)),
    Wrong("a few slots", OTHER_SLOT, ("060",), ((CONSTANT, "{*positions[:4], positions[-1]} == {pos0}"),)),
    Wrong(
        "blocks kept by the ends",
        r"another session in the middle of the batch[^$]*holds the K of session|was never written",
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
