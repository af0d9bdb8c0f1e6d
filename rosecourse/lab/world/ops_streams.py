"""A residual stream beside the learner's: all that was added to it, each thing by itself and in double precision.

Nobody looks into the learner's own stream. What it holds shows when it is normalised, and then each thing that may have
become of one addition is a variant of the sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .causes import Cause
from .ops_weights import Named, Weights


class Variant(NamedTuple):
    """What may have been computed in the place of what is right, and why."""

    cause: Cause
    what: str
    numbers: Tensor


@dataclass(frozen=True, eq=False)
class Term:
    """One addition to a stream, [N, C]. others: what may have been added in its place."""

    name: str
    right: Tensor
    others: tuple[Variant, ...] = ()


class Left(NamedTuple):
    """A stream of the learner's as an operation has left it, where it is a tensor like the sum, and the right sum."""

    by: str
    terms: int
    numbers: Tensor
    right: Tensor


@dataclass(frozen=True, eq=False)
class Stream:
    """mine: the learner's, whatever it is. terms: what was added. normed: (how many terms there were, their norm) for
    each norm until now; the streams that were made of this one share it. left: after each addition that shows."""

    mine: Any
    terms: tuple[Term, ...]
    normed: list[tuple[int, Tensor]] = field(default_factory=list)
    left: tuple[Left, ...] = ()

    def then(self, mine: Any, term: Term) -> Stream:
        """The stream after a further addition."""
        return Stream(mine, (*self.terms, term), self.normed, self.left)

    def left_by(self, operation: str) -> Stream:
        """The same, with what an operation has left."""
        if not isinstance(self.mine, Tensor) or self.mine.shape != self.total.shape:
            return self
        left = Left(operation, len(self.terms), self.mine.double().clone(), self.total)
        return replace(self, left=(*self.left, left))

    @property
    def total(self) -> Tensor:
        """The sum that is right."""
        return torch.stack([term.right for term in self.terms]).sum(dim=0)


def rows_of(name: str, table: Tensor, numbers: Tensor) -> Term:
    """Rows of an embedding as an addition: of the token, or of the position."""
    right = table[numbers]
    others = []
    if len(numbers) > 1:
        first = right[:1].expand_as(right)
        others.append(Variant(Cause.WRONG_SESSION, f"{name} is that of the first session for all of them", first))
    return Term(name, right, tuple(others))


def product_of(h: Tensor, linear: Named, weights: Weights) -> Term:
    """linear(h) as an addition."""
    return Term(str(linear), h @ linear.weight + linear.bias, tuple(other_products(h, linear, weights)))


def other_products(h: Tensor, linear: Named, weights: Weights) -> Iterator[Variant]:
    """What may have become of linear(h)."""
    product = h @ linear.weight
    yield Variant(Cause.WRONG_PRODUCT, f"the product of {linear} has no bias", product)
    yield Variant(Cause.WRONG_PRODUCT, f"the bias of {linear} is added twice", product + 2 * linear.bias)
    if linear.weight.shape[0] == linear.weight.shape[1]:
        transposed = h @ linear.weight.T + linear.bias
        yield Variant(Cause.WRONG_PRODUCT, f"the weight of {linear} is transposed; it is [in, out]", transposed)
    for other in weights.linears.values():
        inputs, outputs = other.weight.shape
        if other is linear or outputs != linear.weight.shape[1] or inputs > h.shape[1]:
            continue
        # A kernel that takes its sizes from the weight reads shorter rows.
        product = h.flatten()[: len(h) * inputs].view(len(h), inputs) @ other.weight
        for bias in (other.bias, linear.bias):
            cause = Cause.WRONG_LAYER if other.layer != linear.layer else Cause.WRONG_PRODUCT
            yield Variant(cause, f"it is the product of {other}, not of {linear}", product + bias)


def other_sums(stream: Stream, strange: list[Variant]) -> Iterator[Variant]:
    """What may be in a stream in the place of the right sum. strange: what was never added to it."""
    total, last = stream.total, stream.terms[-1]
    for term in reversed(stream.terms):
        yield Variant(Cause.RESIDUAL_LOST, f"{term.name} is missing in it", total - term.right)
        yield Variant(Cause.RESIDUAL_TWICE, f"{term.name} is in it twice", total + term.right)
        for other in term.others:
            yield Variant(other.cause, other.what, total - term.right + other.numbers)
    if len(stream.terms) > 2:
        yield Variant(Cause.RESIDUAL_LOST, f"only {last.name} is in it, and nothing of what came before", last.right)
        before = total - last.right
        yield Variant(Cause.RESIDUAL_TWICE, f"all that came before {last.name} is in it twice", total + before)
    for many, norm in stream.normed:
        since = torch.stack([torch.zeros_like(norm), *(term.right for term in stream.terms[many:])]).sum(dim=0)
        yield Variant(
            Cause.WRONG_NORM, "an earlier norm of it has taken its place: the sum goes on, not its norm", since + norm
        )
    for one in strange:
        if one.numbers.shape == total.shape:
            yield Variant(one.cause, one.what, total + one.numbers)
            yield Variant(one.cause, one.what, total - last.right + one.numbers)
            yield one
