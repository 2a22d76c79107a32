"""Token, geometric and product weights say different things of one dump: the last is told where it collapses alone."""

from __future__ import annotations

import math

import numpy as np

from rollout_audit.audit.report import FindingReport
from rollout_audit.statistics.population import log_sum
from rollout_audit.statistics.scope import Scope

__all__ = ["collapsed_products"]

TOKEN_MEAN = (0.9, 1.1)
PRODUCT_MEAN = 0.5
"""Below it, with a token mean inside the band, the product says more about length than about the engines"""


def collapsed_products(scope: Scope) -> list[FindingReport]:
    """A finding where whole-response weights average far below 1 while token weights average about 1."""
    if not scope.tokens:
        return []
    rows = scope.rows
    token = _exp(log_sum(rows["log_sum_ratio"]) - math.log(scope.tokens))
    product = _exp(log_sum(rows["sum_d"]) - math.log(scope.sequences))
    if not (TOKEN_MEAN[0] <= token <= TOKEN_MEAN[1] and product < PRODUCT_MEAN):
        return []
    geometric = float(np.mean(np.exp(rows["sum_d"] / rows["valid_tokens"])))
    text = (
        f"whole-response weights (products) average {product:.3g} where token weights average {token:.3g} and "
        f"geometric ones {geometric:.3g}: small shifts of one sign add up over a response"
    )
    return [FindingReport(kind="collapsed_products", severity="warning", message=text, count=scope.sequences)]


def _exp(log: float) -> float:
    return math.exp(log) if log < 700.0 else math.inf
