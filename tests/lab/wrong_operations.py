"""Wrong operations of lessons 069 to 071, and right ones without the idea: the solution, and what is changed in it.

Each row is a fault, and pairs of texts: each of the first must be in the source.
"""

from tests.support.cells import part_in, solution


def damaged(number, fault, *texts):
    """The class of a lesson's solution with a fault in it."""
    source = solution(number)
    for old, new in zip(texts[::2], texts[1::2], strict=True):
        assert old in source, f"{fault}: the solution of lesson {number} has no {old!r}"
        source = source.replace(old, new)
    return part_in(source)


# -- 069 --------------------------------------------------------------------------------------------------------------

SUM = "x.x, normed = self.add_norm(x.x, x.delta, norm.weight, norm.bias, norm.eps)\n"
END = "        x.delta = None\n        return normed"
ADDED = "Residual(x.x if x.delta is None else x.x + x.delta, linear(h))"
EMBEDDED = "return Residual(F.embedding(token_ids, wte), F.embedding(positions, wpe))"
PADDED = "if self.padded is None or self.padded[0] is not wte:"
PADS = "self.padded = wte, F.pad(wte, (0, 0, 0, -len(wte) % self.multiple))"
CUT = "return (self._norm(x, norm) @ self._padded(wte).T)[:, : len(wte)]"
GELU = 'F.gelu(linear(self._norm(x, norm)), approximate="tanh")'
PRODUCT = "return linear(self._norm(x, norm))"
INIT = "        self.add_norm = add_norm_on(model.device)\n"
LANES = "1 << (x.x.shape[1] - 1).bit_length()"


def kept(*lines):
    """Lines at the end of `__init__`."""
    return INIT, INIT + "".join(f"        {line}\n" for line in lines)


def normed_by(numbers):
    """What comes of a norm in its place; `total` and `centred` are the sum and the sum without its mean."""
    lines = ("total = x.x", "centred = total - total.mean(1, keepdim=True)", f"numbers = {numbers}")
    body = "".join(f"        {line}\n" for line in lines)
    return END, f"        x.delta = None\n{body}        return numbers * norm.weight + norm.bias"


WRONG_069 = [
    ("what is added is dropped", ADDED, "x"),
    ("what has waited goes on waiting", "        x.delta = None\n", ""),
    (
        "positions remembered by size",
        *kept("self.rows = {}"),
        EMBEDDED,
        "return Residual(wte[token_ids], self.rows.setdefault(len(positions), wpe[positions]))",
    ),
    ("the first norm for all", SUM, SUM.replace("norm.", "self.first.setdefault(0, norm)."), *kept("self.first = {}")),
    ("eps is the usual one", SUM, SUM.replace("norm.eps", "1e-5")),
    ("an unbiased variance", *normed_by("centred * (total.var(1, keepdim=True) + norm.eps).rsqrt()")),
    ("lanes in the variance", *normed_by(f"centred * (centred.square().sum(1, True) / ({LANES}) + norm.eps).rsqrt()")),
    (
        "one stream",
        EMBEDDED,
        EMBEDDED.replace("return", "self.x =") + "\n        return 0",
        ADDED,
        "0",
        "        return 0\n\n    def logits",
        "        self.x = " + ADDED.replace("x.", "self.x.") + "\n        return 0\n\n    def logits",
        "        if x.delta",
        "        x = self.x\n        if x.delta",
    ),
    ("all streams are kept", *kept("self.all = []"), SUM, SUM + "        self.all.append(normed)\n"),
    (
        "a bias waits",
        ADDED,
        "Residual((x.x if x.delta is None else x.x + x.delta) + h @ linear.weight, "
        "linear.bias[None].expand(len(h), -1))",
    ),
    (
        "transposed if square",
        "linear(h))",
        "F.linear(h, *((linear.weight if len(linear.weight) == len(linear.bias) else linear.weight.T), linear.bias)))",
    ),
    (
        "weights of the first",
        *kept("self.first = {}"),
        "linear(h))",
        "self.first.setdefault(linear.weight.shape, linear)(h))",
    ),
    ("exact GELU", ', approximate="tanh"', ""),
    (
        "the library's end of a product",
        GELU,
        "torch._addmm_activation(linear.bias, self._norm(x, norm), linear.weight, use_gelu=True)",
        "from torch import Tensor",
        "import torch\nfrom torch import Tensor",
    ),
    ("not cut", "[:, : len(wte)]", ""),
    ("pads the first model", " or self.padded[0] is not wte", ""),
    (
        "pads once for all",
        "self.padded: tuple[Tensor, Tensor] | None = None",
        "",
        "    multiple",
        "    padded = None\n    multiple",
        PADDED,
        "if MyOps.padded is None:",
        PADS,
        PADS.replace("self.padded", "MyOps.padded"),
    ),
    (
        "the model's embedding grows",
        *kept("self.model = model"),
        "return self.padded[1]",
        "self.model.wte = self.padded[1]\n        return self.padded[1]",
    ),
    ("the norm is folded into the model", PRODUCT, "linear.weight.mul_(norm.weight[:, None])\n        " + PRODUCT),
    ("written into the input", "linear(h))", "h[:, : len(linear.bias)].copy_(linear(h)).contiguous())"),
    (
        "the next positions are made at once",
        EMBEDDED,
        EMBEDDED.replace("return", "made =") + "\n        positions.add_(1)\n        return made",
    ),
    (
        "one buffer of products",
        *kept("self.buffers = {}"),
        PRODUCT,
        "made = linear(self._norm(x, norm))\n        "
        "return self.buffers.setdefault(made.shape, made.clone()).copy_(made)",
    ),
    ("the host reads a position", EMBEDDED, "assert positions.min().item() >= 0\n        " + EMBEDDED),
    ("single precision", CUT, CUT + ".float()"),
    ("columns", CUT, "return (self._padded(wte) @ self._norm(x, norm).T).T[:, : len(wte)]"),
    ("no row for one", PRODUCT, PRODUCT + ".squeeze(0)"),
    ("returns nothing", "return " + ADDED, ADDED),
]
COSTLY_069 = [
    ("a sum at once", ADDED, "Residual((x.x if x.delta is None else x.x + x.delta) + linear(h), None)"),
    (
        "the embedding at once",
        EMBEDDED,
        "return Residual(F.embedding(token_ids, wte) + F.embedding(positions, wpe), None)",
    ),
    ("the sum is forgotten", "x.x, normed = self", "_, normed = self", "        x.delta = None\n", ""),
    ("a product is copied", "linear(h))", "linear(h).clone())"),
    ("not padded", "multiple = 256", "multiple = 1"),
    ("padded in each step", PADDED, "if True:"),
    (
        "a copy for each size",
        *kept("self.copies = {}"),
        PADS,
        "pass",
        PADDED,
        "if False:",
        "return self.padded[1]",
        "return wte",
        CUT,
        "normed = self._norm(x, norm)\n        if (wte, len(normed)) not in self.copies:\n            "
        "self.copies[wte, len(normed)] = F.pad(wte, (0, 0, 0, -len(wte) % 256))\n        "
        "return (normed @ self.copies[wte, len(normed)].T)[:, : len(wte)]",
    ),
]

# -- 070 --------------------------------------------------------------------------------------------------------------

TANH = "acc = acc / (1.0 + tl.exp(-1.5957691216057308 * (acc + 0.044715 * acc * acc * acc)))"
FOLDS = "self.folded[norm, linear]"
OUT = "out = x.new_empty(rows, N)\n"
LAUNCHED = "return self._linear(h, self._fold(None, linear), old=x)"
TURNED = "self.weight = wide.T.to(weight.dtype).contiguous()"
EMBEDS = "        return x\n\n    def norm_linear("
POSITION = "tl.load(positions_ptr + b)"
READ_AGAIN = """    for again in range(0, K, BK):
        w = tl.load(w_ptr + n[:, None] * K + (again + tl.arange(0, BK))[None, :], mask=in_columns[:, None]
                    & (again + tl.arange(0, BK) < K)[None, :], other=0.0)
        acc += 0.0 * tl.sum(w)
"""
WRONG_070 = [
    ("a mean of squares", "tl.sum(centred * centred, axis=1) / K", "(tl.sum(row * row, axis=1) / K - mean * mean)"),
    ("padding has a distance", "tl.where(in_row, row - mean[:, None], 0.0)", "row - mean[:, None]"),
    ("exact GELU", TANH, "acc = acc * 0.5 * (1.0 + tl.erf(acc * 0.7071067811865476))"),
    ("past the row", "inside = (k < K)[None, :]", "inside = (k < K + BK)[None, :]"),
    ("no mask of rows", "in_rows[:, None] & in_columns[None, :]\n    if ADD", "in_columns[None, :]\n    if ADD"),
    ("half precision", "tl.dot(x, tl.trans(w),", "tl.dot(x.to(tl.float16), tl.trans(w.to(tl.float16)),"),
    ("the last tile is left out", "triton.cdiv(N, 64)", "max(1, N // 64)"),
    (
        "square as it is",
        TURNED,
        "turned = wide if norm is None and len(wide) == wide.shape[1] else wide.T\n        "
        "self.weight = turned.to(weight.dtype).contiguous()",
    ),
    (
        "a map is folded for one norm",
        "(norm, linear) not in self.folded",
        "linear not in self.folded",
        FOLDS,
        "self.folded[linear]",
    ),
    ("folded in place", TURNED, TURNED + "\n        weight.copy_(wide)"),
    (
        "into its input",
        LAUNCHED,
        LAUNCHED.replace("return", "made =") + "\n        h[:, : made.shape[1]].copy_(made)\n        return made",
    ),
    ("one buffer", OUT, "out = self.folded.setdefault((rows, N), x.new_empty(rows, N))\n"),
    ("added twice", LAUNCHED, LAUNCHED.replace("old=x", "old=self._linear(h, self._fold(None, linear), old=x)")),
    ("the position of the first", POSITION, "tl.load(positions_ptr)"),
    ("the host reads", EMBEDS, "        token_ids.tolist()\n" + EMBEDS),
    ("all is kept", OUT, OUT + "        self.folded[len(self.folded)] = out\n"),
]
COSTLY_070 = [
    ("the library's embedding", EMBEDS, "        x = wte[token_ids] + wpe[positions]\n" + EMBEDS),
    (
        "GELU by itself",
        "eps=norm.eps, gelu=True)",
        "eps=norm.eps).mul(1) if False else torch.nn.functional.gelu(self._linear(x, self._fold(norm, linear), "
        "eps=norm.eps), approximate='tanh')",
    ),
    ("folded in each step", "if (norm, linear) not in self.folded:", "if True:"),
    ("zeros first", OUT, "out = x.new_zeros(rows, N)\n"),
    ("weights are read twice", "    if NORM:\n        colsum", READ_AGAIN + "    if NORM:\n        colsum"),
]

# -- 071 --------------------------------------------------------------------------------------------------------------

WAIT, START = "    wait()\n", "    start_next()\n"
BOTH = WAIT + START
BIAS_READ = "    bias = tl.load(bias_ptr + n, mask=n < N, other=0.0)\n"
WEIGHTS = "    w = tl.load(w_at, mask=(k < K)[:, None] & in_columns, other=0.0)  # nobody writes weights\n"
IDLE = "    if tile_m * BM >= rows:  # after the wait: a program without work waits, too\n        return\n"
STORE = "    tl.store(at, x.to(x_ptr.dtype.element_ty), mask=in_rows & in_columns)\n"
OLD_SUM = "    x = tl.load(at, mask=in_rows & in_columns, other=0.0)  # the kernel before may have added to it\n"
AT = "    at = x_ptr + m[:, None] * N + n[None, :]\n"
WRONG_071 = [
    ("rows early", BOTH, "    tl.load(h_at, mask=in_rows & (k < K)[None, :], other=0.0)\n" + BOTH),
    (
        "the last row early",
        BOTH,
        "    if tile_n == tl.num_programs(1) - 1:\n        tl.load(h_ptr + rows * K - 1)\n" + BOTH,
    ),
    ("the sum early", OLD_SUM, "", AT, "", BOTH, AT + OLD_SUM + BOTH),
    (
        "a store early",
        BOTH,
        AT + "    tl.store(at, tl.load(at, mask=in_rows & in_columns, other=0.0), mask=in_rows & in_columns)\n" + BOTH,
    ),
    ("waits at the end", BOTH, "", STORE, STORE + BOTH),
    ("returns first", IDLE, "", "    h_at, w_at", IDLE + "    h_at, w_at"),
    ("never waits", WAIT, ""),
    ("the first columns wait", WAIT, "    if tile_n == 0:\n        wait()\n"),
    ("many rows wait", BOTH, "    if rows > 1:\n        wait()\n        start_next()\n"),
    ("starts first", BOTH, START + WAIT),
    ("idle ones start first", BOTH, IDLE.replace("return", "start_next()\n        wait()\n        return") + BOTH),
    ("the bias past its end", "tl.load(bias_ptr + n, mask=n < N, other=0.0)", "tl.load(bias_ptr + n)"),
]
COSTLY_071 = [
    ("weights late", WEIGHTS, "", BOTH, BOTH + WEIGHTS),
    ("the bias late", BIAS_READ, "", BOTH, BOTH + BIAS_READ),
    ("read before and after", BOTH, BOTH + WEIGHTS + BIAS_READ),
    ("never starts", START, ""),
    ("starts at the end", START, "", STORE, STORE + START),
    ("waits twice", STORE, STORE + WAIT),
    ("starts twice", STORE, STORE + START),
    ("not early", ", launch_pdl=True", ""),
    ("no kernel", "        early_linear_add", "        return x + linear(h)\n        early_linear_add"),
]

WRONG = {"069": WRONG_069, "070": WRONG_070, "071": WRONG_071}
COSTLY = {"069": COSTLY_069, "070": COSTLY_070, "071": COSTLY_071}
