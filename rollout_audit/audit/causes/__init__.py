"""The likely cause of a mismatch, named from what one pass over the dump has kept.

`table.DETECTORS` is the list: a name, how grave it is, a function of the evidence (`exhibit.Exhibit`), what it takes
and why, what else it might be, what to do. Each module holds the detectors of one family. Nothing is repaired.
"""

from __future__ import annotations

from rollout_audit.audit.causes.find import find_causes
from rollout_audit.audit.causes.gather import causes_of_dump, exhibit_of
from rollout_audit.audit.causes.model import Cause
from rollout_audit.audit.causes.table import DETECTORS

__all__ = ["DETECTORS", "Cause", "causes_of_dump", "exhibit_of", "find_causes"]
