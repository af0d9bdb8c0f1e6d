"""Parts with a fault in their use of the kernels of lesson 061, and right ones without their lesson's idea."""

from tests.support.wrong_parts import Wrong
from tests.support.wrong_parts_append import CALL, FULL, LATE_K, LATE_V, ROLLING, SOME, WHOLE

IDEAS = [
    # lesson 061
    Wrong("the whole-batch kernel for some", ("061",), (("and full_fast and", "and"),)),
    Wrong(
        "the whole-batch kernel at other slots",
        ("061",),
        (("full_fast and const_pos", "full_fast"),),
    ),
    Wrong(
        "the kernel at the next slot",
        ("061",),
        ((WHOLE, WHOLE.replace("pos0", "(pos0 + 1) % self.kv.block_size")),),
    ),
    Wrong(
        "the kernel with rows in the wrong order",
        ("061",),
        ((SOME, SOME.replace("idx_t", "idx_t.flip(0)")),),
    ),
    Wrong(
        "the kernel writes K alone",
        ("061",),
        ((WHOLE, WHOLE.replace("v_layer", "k_layer")),),
    ),
    Wrong(
        "no return after the kernel",
        ("061",),
        (("            return\n", ""),),
        True,
    ),
    Wrong(
        "no kernel for whole batches",
        ("061",),
        ((WHOLE, (LATE_K + "; " + LATE_V).replace("slots", "pos0")),),
        True,
    ),
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
    Wrong(
        "one by one",
        ("038",),
        (("or info.owners > 1", "or True"),),
        True,
    ),
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
    Wrong(
        "rows always selected",
        ("060",),
        (("if not full_fast:", "if True:"),),
        True,
    ),
    Wrong(
        "slots always as a tensor",
        ("060",),
        (("pos0 if const_pos else ", ""),),
        True,
    ),
]
