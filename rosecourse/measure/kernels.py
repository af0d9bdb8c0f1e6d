"""What the kernels of a recorded step do for the model: their classes, and their places in a layer."""

from __future__ import annotations

import pandas as pd

from .timeline import Timeline

# The product that makes the logits reads more than any other, so it is the longest product of a step.
HEAD = "product with the vocabulary"
PRODUCTS = "products of the layers"
ATTENTION = "attention"
APPEND = "append of K and V"
NORMS = "layer norms"
ELEMENTWISE = "sums, GELU, others elementwise"
COPIES = "copies"
REST = "embedding, choice, the rest"
GAPS = "gaps between kernels"
CLASSES = (HEAD, PRODUCTS, ATTENTION, APPEND, NORMS, ELEMENTWISE, REST, COPIES)  # of kernels

OF_KINDS = {"attention": ATTENTION, "append": APPEND, "copy": COPIES, "matrix": PRODUCTS}
# The other kernels, by their names; the first that fits counts. A graph's copies are kernels.
OF_NAMES = {COPIES: r"^memcpy", NORMS: r"(?i)layer_?norm|add_norm", ELEMENTWISE: r"elementwise", REST: ""}

QKV, ATTEND, PROJECT, WIDEN, NARROW, VOCABULARY = PLACES = (
    "norm, q, k, v",
    "attention, append",
    "project, sum",
    "norm, widen, GELU",
    "narrow, sum",
    "norm, vocabulary",
)


def classes_of(kernels: pd.DataFrame) -> pd.Series:
    """Of each kernel one of `CLASSES`."""
    classes = kernels.kind.map(OF_KINDS)
    for name, pattern in OF_NAMES.items():
        classes = classes.mask(classes.isna() & kernels.name.str.contains(pattern), name)
    products = kernels[kernels.kind == "matrix"]
    if len(products):
        classes[products.us.idxmax()] = HEAD
    return classes


def spent_by_class(step: Timeline) -> pd.DataFrame:
    """The kernels of a step by class, in the order of `CLASSES`: how many (`kernels`), and their own time (`us`).

    Last come the `GAPS`: the time in which no kernel ran, under the profiler. All times together are the step. What
    counts as elementwise, and is there less often than attention, copies the logits. A profiler's window of replays
    (lesson 067 on) is no whole step: give what `replayed_step` makes of it.
    """
    classes = classes_of(step.kernels)
    if (classes == ELEMENTWISE).sum() < (classes == ATTENTION).sum():
        classes = classes.replace(ELEMENTWISE, COPIES)
    spent = step.kernels.own_us.groupby(classes).agg(kernels="size", us="sum").round({"us": 1})
    spent = spent.loc[[name for name in CLASSES if name in spent.index]]
    spent.loc[GAPS] = 0, round(step.step_us - step.busy_us, 1)
    return spent.astype({"kernels": int})


def spent_by_place(timeline: Timeline) -> pd.DataFrame:
    """The kernels around one product or attention, in the order of `PLACES`: medians of how many, and their time.

    A product's name does not say where in a layer it stands; their order does. After attention come three products,
    and the fourth is that of the next layer to q, k and v. Norms belong to the product after them, and what puts the
    parts of a product together to the one before. Kernels before the first attention are left out: a profiler's window
    may begin with the end of a layer.
    """
    kernels, classes = timeline.kernels, classes_of(timeline.kernels)
    reduces = kernels.kind.eq("matrix") & kernels.name.str.contains("(?i)reduce")
    attends, anchors = kernels.kind.eq("attention"), kernels.kind.isin(["attention", "matrix"]) & ~reduces
    group = anchors.cumsum() + classes.eq(NORMS)
    products = (anchors & ~attends & classes.ne(HEAD)).groupby(attends.cumsum()).cumsum()
    place = products.map(dict(enumerate((None, PROJECT, WIDEN, NARROW, QKV)))).mask(attends, ATTEND)
    place = place.mask(classes.eq(HEAD), VOCABULARY).where(anchors & attends.cummax())
    counted = kernels[anchors | reduces | classes.eq(NORMS)]
    sums = counted.groupby(group).us.agg(kernels="size", us="sum")
    of_group = place[anchors].set_axis(group[anchors])
    medians = sums.groupby(of_group).median().round({"us": 2})
    return medians.loc[[name for name in PLACES if name in medians.index]]
