"""Sphinx extension: signatures as a caller sees them, and fields of a class where they have something to say."""

import inspect
from typing import Any

from sphinx.application import Sphinx
from sphinx.util.inspect import stringify_signature
from sphinx.util.typing import stringify_annotation

UNSAID = "Alias for field number"  # the docstring that Python gives to a field of a named tuple


def short(text: str) -> str:
    """Without what Sphinx leaves in an annotation that is a text, and with the ellipsis of a `Callable` as it is."""
    return text.replace("torch.Tensor", "Tensor").replace("[[...], ", "[..., ")


def signature_of(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str | None, returned: str | None
) -> tuple[str, str] | None:
    """Sphinx takes the first argument from a function that is a method of an object; that is bound already."""
    if signature is None:
        return None
    if inspect.ismethod(obj) and not inspect.isclass(obj.__self__):
        whole = inspect.signature(obj, eval_str=True)
        signature = stringify_signature(whole, show_return_annotation=False, unqualified_typehints=True)
        returned = stringify_annotation(whole.return_annotation, "smart")
    return short(signature), short(returned or "")


def skip_unsaid(app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    return True if (getattr(obj, "__doc__", None) or "").startswith(UNSAID) else None


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("autodoc-process-signature", signature_of)
    app.connect("autodoc-skip-member", skip_unsaid)
    return {"parallel_read_safe": True}
