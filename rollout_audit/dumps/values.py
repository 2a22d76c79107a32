"""One tensor of torch or array of NumPy, as rows and batches hold them: what its numbers are, and they themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["HALVES", "on_host", "type_name"]

HALVES = {"float16", "bfloat16"}


def type_name(value: Any) -> str:
    """As NumPy and torch call it, `float32`; of a tensor that has no number at each place what it is instead."""
    if getattr(value, "is_sparse", False) or "strided" not in str(getattr(value, "layout", "strided")):
        return "sparse"
    if getattr(value, "is_meta", False):
        return "meta"
    return "quantized" if getattr(value, "is_quantized", False) else str(value.dtype).removeprefix("torch.")


def on_host(value: Any) -> NDArray[Any]:
    """The numbers without their gradient; half precision widened to float32, exactly. A copy only where it must be."""
    half = type_name(value) in HALVES
    if isinstance(value, np.ndarray):
        return value.astype(np.float32) if half else value
    value = value.detach()
    return np.asarray((value.float() if half else value).cpu().resolve_conj().resolve_neg().numpy())
