"""Judges of operations: each product is compared at once, and what it might have been made of names the cause."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ...pictures.sheet import counted
from .causes import Cause
from .fault import Fault, PartIsWrong
from .ops_blame import left_unwritten, left_wrong
from .ops_close import NEARLY, ROUNDED, agreeing, close
from .ops_poison import not_written
from .ops_streams import Stream, Variant, other_products, other_sums
from .ops_weights import Named, Weights

WHOLE = "look at the grid, which has to reach over the last rows and columns, and at who writes a tile in the end"
LARGE = 10  # times as far from 0 as from each other: numbers that lose a digit if they are squared
DIGITS = "a mean of squares less the square of the mean keeps few digits of a variance: take the mean away first"
COARSE = "add up in float32, and multiply so, too: of a float32 product Triton keeps 10 bits unless it is asked for all"
FEW_DIGITS = "it is nearly right, as with too few digits"
OTHER_EPS = (1e-5, 1e-6, 1e-12, 0.0, 1e-3, 1e-8)
FORGOTTEN = "keep what waits in the stream, which goes from one operation to the next, and not in the part"
ONES_OWN = "what is made of a weight belongs to that weight: keep it by the weight, not once for all"


@dataclass(frozen=True)
class Asked:
    """A product that was asked for. linear: None for the logits. gelu: whether GELU comes behind it."""

    method: str
    stream: Stream
    norm: Named
    linear: Named | None
    gelu: bool = False

    def __str__(self) -> str:
        return f"`{self.method}` of {self.norm}" + (f" and {self.linear.name}" if self.linear else "")


class Judge:
    """Of one model. strange: what belongs to other streams, steps and models, which must not get into these.

    before: what each method has returned in the step before, by what was asked. unknown: what is said of what nobody
    has thought of.
    """

    def __init__(self, weights: Weights, unknown: str = "") -> None:
        self.weights, self.unknown = weights, unknown
        self.strangers: list[Weights] = []  # other models that the same part computes
        self.strange: list[Variant] = []
        self.before: dict[str, Tensor] = {}

    def norm(self, x: Tensor, norm: Named) -> Tensor:
        return F.layer_norm(x, norm.weight.shape, norm.weight, norm.bias, norm.eps)

    def right(self, asked: Asked) -> Tensor:
        """What is asked for, from the sum on."""
        return self._behind(asked, self.norm(asked.stream.total, asked.norm))

    def look(self, asked: Asked, found: Tensor, names: Sequence[str]) -> None:
        """Raises `PartIsWrong` unless what was found is what was asked for. names: of the sessions of the rows."""
        right, given = self.right(asked), found.double()
        if len(found) != len(right):
            what = f"{asked} has {counted(len(found), 'row')} for {counted(len(right), 'session')}"
            raise PartIsWrong(Fault(what, cause=Cause.INTERFACE))
        if close(given, right, found.dtype):
            self.before[str(asked)] = right
            return
        raise PartIsWrong(self._fault(asked, found, right, names))

    def _behind(self, asked: Asked, normed: Tensor) -> Tensor:
        """What comes of a norm."""
        if asked.linear is None:
            return normed @ self.weights.wte.T
        product = normed @ asked.linear.weight + asked.linear.bias
        return F.gelu(product, approximate="tanh") if asked.gelu else product

    # -- why ----------------------------------------------------------------------------------------------------------

    def _fault(self, asked: Asked, found: Tensor, right: Tensor, names: Sequence[str]) -> Fault:
        """What is wrong, and with which operation: this one, or one that left it a wrong stream."""
        given, dtype, unwritten = found.double(), found.dtype, not_written(found)
        if unwritten.any():
            left = left_unwritten(asked.stream)
            by, which = (left.by, left.numbers.isnan()) if left else (str(asked), unwritten)
            numbers, wanted = (left.numbers, left.right) if left else (given, right)
            return _told(
                by, numbers, wanted, names, _worst(numbers, wanted), Cause.HALF_WRITTEN, _unwritten(which), WHOLE
            )
        known = self._known(asked, given, right, dtype)
        if known is not None:
            return _told(str(asked), given, right, names, _worst(given, right), *known)
        left = left_wrong(asked.stream, lambda total: self._behind(asked, self.norm(total, asked.norm)), given, dtype)
        if left is None:
            return _told(str(asked), given, right, names, _worst(given, right), *self._nearly(asked, given, right))
        few = close(left.numbers, left.right, ROUNDED)
        why, reason = (FEW_DIGITS, COARSE) if few else ("", self.unknown)
        at = _first_wrong(left.numbers, left.right, dtype)
        return _told(left.by, left.numbers, left.right, names, at, Cause.VALUES_CHANGED, why, reason)

    def _known(self, asked: Asked, found: Tensor, right: Tensor, dtype: torch.dtype) -> tuple[Cause, str, str] | None:
        """Why it is wrong, where somebody has thought of it."""
        for variant in self._variants(asked):
            if close(found, variant.numbers, dtype):
                variant = self._nearest_eps(asked, found) if variant.what.startswith("eps is") else variant
                return variant.cause, variant.what, _remedy(variant)
        if asked.linear is None and (zero := int((found == 0).all(dim=0).sum())):
            return Cause.PADDING_SHOWN, f"the logits of {zero} words are 0, as those of a padding of zeros are", ""
        for row in range(len(right)):
            if len(right) > 1 and close(found, right[row : row + 1].expand_as(right), dtype):
                return Cause.WRONG_SESSION, f"all rows are that of row {row}", ""
        if len(right) > 1 and close(found.sort(dim=0).values, right.sort(dim=0).values, dtype):
            return Cause.WRONG_SESSION, "these are the right rows, in another order", ""
        return None

    def _nearest_eps(self, asked: Asked, found: Tensor) -> Variant:
        """Of several that may be it."""
        others = [one for one in self._other_norms(asked.stream.total, asked.norm) if one.what.startswith("eps is")]
        return min(others, key=lambda one: (found - self._behind(asked, one.numbers)).abs().max().item())

    def _nearly(self, asked: Asked, found: Tensor, right: Tensor) -> tuple[Cause, str, str]:
        """Why it is not what nobody has thought of: it has too few digits, or nothing is known."""
        x = asked.stream.total
        mean, deviation = x.mean(dim=1).abs().max().item(), x.std(dim=1, correction=0).min().item()
        if mean > LARGE * deviation and close(found, right, NEARLY):
            why = f"it is nearly right; the rows have means of up to {mean:.3g} and deviations from {deviation:.2g} on"
            return Cause.WRONG_NORM, why, DIGITS
        return (Cause.VALUES_CHANGED, *((FEW_DIGITS, COARSE) if close(found, right, ROUNDED) else ("", self.unknown)))

    def _variants(self, asked: Asked) -> Iterator[Variant]:
        """What may have been computed in the place of what was asked for, one thing being wrong."""
        for one in other_sums(asked.stream, self.strange):
            yield one._replace(numbers=self._behind(asked, self.norm(one.numbers, asked.norm)))
        total = asked.stream.total
        for one in self._other_norms(total, asked.norm):
            yield one._replace(numbers=self._behind(asked, one.numbers))
        normed = self.norm(total, asked.norm)
        yield from self._other_logits(normed) if asked.linear is None else self._other_products(asked, normed)
        yield from self._other_pairs(asked)
        earlier = self.before.get(str(asked))
        if earlier is not None and earlier.shape == self.right(asked).shape:
            yield Variant(Cause.STATE_KEPT, "this is what the step before has made", earlier)

    def _other_norms(self, x: Tensor, norm: Named) -> Iterator[Variant]:
        plain = F.layer_norm(x, norm.weight.shape, eps=norm.eps)
        wrong = Cause.WRONG_NORM
        yield Variant(wrong, "what goes into the product is not normalised", x)
        yield Variant(wrong, f"the weight of {norm} is left out", plain + norm.bias)
        yield Variant(wrong, f"the bias of {norm} is left out", plain * norm.weight)
        yield Variant(wrong, f"weight and bias of {norm} are left out", plain)
        yield Variant(wrong, "it is normalised twice", self.norm(self.norm(x, norm), norm))
        for eps in OTHER_EPS:
            if eps != norm.eps:
                normed = F.layer_norm(x, norm.weight.shape, norm.weight, norm.bias, eps)
                yield Variant(wrong, f"eps is {eps:g}; {norm} has {norm.eps:g}", normed)
        deviation = (x.var(dim=1, correction=0, keepdim=True) + norm.eps).sqrt()
        yield Variant(wrong, "the mean is not taken away", x / deviation * norm.weight + norm.bias)
        rms = x * (x.square().mean(dim=1, keepdim=True) + norm.eps).rsqrt()
        yield Variant(wrong, "the mean is not taken away", rms * norm.weight + norm.bias)
        if x.shape[1] > 1:
            centred = x - x.mean(dim=1, keepdim=True)
            unbiased = centred * (x.var(dim=1, keepdim=True) + norm.eps).rsqrt()
            yield Variant(wrong, "the variance is divided by C - 1, not by C", unbiased * norm.weight + norm.bias)
        for one in _other_deviations(x, norm.eps):
            yield one._replace(numbers=one.numbers * norm.weight + norm.bias)
        for other in self.weights.norms.values():
            if other is not norm:
                cause = Cause.WRONG_LAYER if other.layer != norm.layer else wrong
                yield Variant(cause, f"it is normalised by {other}, not by {norm}", self.norm(x, other))
        for stranger in self.strangers:
            for other in stranger.norms.values():
                if other.weight.shape == norm.weight.shape:
                    what = f"it is normalised by {other} of another model, which the same part computes"
                    yield Variant(Cause.STATE_KEPT, what, self.norm(x, other))

    def _other_products(self, asked: Asked, normed: Tensor) -> Iterator[Variant]:
        assert asked.linear is not None
        for one in other_products(normed, asked.linear, self.weights):
            gelu = F.gelu(one.numbers, approximate="tanh")
            yield one._replace(numbers=gelu if asked.gelu else one.numbers)
        shift = asked.norm.bias @ asked.linear.weight
        product = normed @ asked.linear.weight
        neither = f"there is no bias behind the product, neither that of {asked.linear} nor what the norm's comes to"
        plain = F.gelu(product - shift, approximate="tanh") if asked.gelu else product - shift
        yield Variant(Cause.WRONG_PRODUCT, neither, plain)
        product = product + asked.linear.bias
        wrong = Cause.WRONG_GELU
        if not asked.gelu:
            yield Variant(wrong, "GELU comes behind it, and none is asked for", F.gelu(product, approximate="tanh"))
            return
        yield Variant(wrong, "it is the exact GELU, not the one with tanh", F.gelu(product))
        yield Variant(wrong, "there is no GELU behind the product", product)
        yield Variant(wrong, "ReLU stands in the place of GELU", F.relu(product))
        yield Variant(wrong, "it is x * sigmoid(1.702 x)", product * torch.sigmoid(1.702 * product))
        yield Variant(wrong, "SiLU stands in the place of GELU", F.silu(product))
        twice = F.gelu(F.gelu(product, approximate="tanh"), approximate="tanh")
        yield Variant(wrong, "GELU comes twice", twice)

    def _other_pairs(self, asked: Asked) -> Iterator[Variant]:
        """Norm and product of another layer or model, as where the two are kept as one."""
        stream, named = asked.stream, asked.linear
        for weights in (self.weights, *self.strangers):
            of_another = "" if weights is self.weights else " of another model, which the same part computes"
            judge = self if weights is self.weights else Judge(weights)
            for norm in weights.norms.values():
                linears = [one for one in weights.linears.values() if one.layer == norm.layer] if named else [None]
                for linear in linears:
                    other = Asked(asked.method, stream, norm, linear, asked.gelu)
                    if _fits(other, asked) and (norm, linear) != (asked.norm, named) and (named or norm.layer < 0):
                        cause = Cause.STATE_KEPT if of_another else Cause.WRONG_LAYER
                        with_what = linear.name if linear else "the embedding"
                        yield Variant(cause, f"it is made of {norm} and {with_what}{of_another}", judge.right(other))

    def _other_logits(self, normed: Tensor) -> Iterator[Variant]:
        most = len(self.weights.wte)
        for stranger in self.strangers:
            if stranger.wte.shape[1] == normed.shape[1]:
                logits = F.pad(normed @ stranger.wte.T, (0, most))[:, :most]
                what = "it is a product with the embedding of another model, which the same part computes"
                yield Variant(Cause.STATE_KEPT, what, logits)


def _other_deviations(x: Tensor, eps: float) -> Iterator[Variant]:
    """Rows that are normalised otherwise, before weight and bias: by eps elsewhere, or over lanes past their end."""
    width = x.shape[1]
    lanes = 1 << (width - 1).bit_length()
    mean = x.mean(dim=1, keepdim=True)
    variance = x.var(dim=1, correction=0, keepdim=True)
    wrong = Cause.WRONG_NORM
    outside = "eps is added to the deviation, behind the root; it belongs to the variance"
    yield Variant(wrong, outside, (x - mean) / (variance.sqrt() + eps))
    if lanes == width:
        return
    past = f"{lanes} lanes for rows of {width} numbers"
    counted_too = variance + (lanes - width) * mean.square() / width
    yield Variant(wrong, f"{past}: those past the end count in the variance", (x - mean) * (counted_too + eps).rsqrt())
    short = variance * width / lanes
    yield Variant(wrong, f"the variance is divided by {lanes}, not by {width}", (x - mean) * (short + eps).rsqrt())
    low = mean * width / lanes
    apart = x - low
    around = apart.square().mean(dim=1, keepdim=True)
    divided = f"the mean is divided by {lanes}, not by {width}"
    yield Variant(wrong, divided, apart * (around + eps).rsqrt())
    both = around * width / lanes
    yield Variant(wrong, f"mean and variance are divided by {lanes}, not by {width}", apart * (both + eps).rsqrt())


def _remedy(variant: Variant) -> str:
    """What helps against what was kept."""
    if variant.cause is not Cause.STATE_KEPT:
        return ""
    return ONES_OWN if "of another model" in variant.what else FORGOTTEN


def _fits(other: Asked, asked: Asked) -> bool:
    """Whether one could stand in the place of the other."""
    if other.norm.weight.shape != asked.norm.weight.shape:
        return False
    return asked.linear is None or (other.linear is not None and other.linear.bias.shape == asked.linear.bias.shape)


def _unwritten(which: Tensor) -> str:
    """Which numbers were never written, in words."""
    columns, rows = which.all(dim=0).nonzero().flatten().tolist(), which.all(dim=1).nonzero().flatten().tolist()
    words = f"{int(which.sum())} of {which.numel()} numbers were never written, or come of memory that never was"
    if rows:
        return f"{words}: all those of row {rows[0]}"
    return f"{words}: those from column {columns[0]} on" if columns else words


def _some(numbers: Tensor) -> str:
    return ", ".join(f"{number:.4g}" for number in numbers[:3].tolist())


def _worst(found: Tensor, right: Tensor) -> tuple[int, int]:
    """Where the largest difference is, as its row and a column from which three numbers can be shown."""
    difference = (found - right).abs().nan_to_num(nan=torch.inf)
    row = int(difference.amax(dim=1).argmax())
    return row, max(0, min(int(difference[row].argmax()), right.shape[1] - 3))


def _first_wrong(found: Tensor, right: Tensor, dtype: torch.dtype) -> tuple[int, int]:
    """The row and the column of the first wrong number."""
    row, column = (~agreeing(found, right, dtype)).nonzero()[0].tolist()
    return row, column


def _told(
    by: str,
    found: Tensor,
    right: Tensor,
    names: Sequence[str],
    at: tuple[int, int],
    cause: Cause,
    why: str,
    reason: str,
) -> Fault:
    """What an operation has made wrong. at: the row and the column from which numbers are shown."""
    row, first = at
    details = (
        f"expected: {_some(right[row, first:])}, from number {first} of the row on",
        f"found:    {_some(found[row, first:])}",
        *([f"because: {why}"] if why else []),
    )
    what = f"{by} is not right for session {names[row]} (row {row} of {len(right)})"
    return Fault(what, details, reason, cause=cause)
