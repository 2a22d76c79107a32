"""GitLab's code-quality report: a JSON list, shown beside the golden file in a merge request."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from rollout_audit.golden.result import CheckResult
from rollout_audit.golden.sentences import Remark, remarks
from rollout_audit.reports.utf8 import utf8_as_named

__all__ = ["code_quality"]

SEVERITY = {"error": "critical", "warning": "minor", "notice": "info"}


def code_quality(result: CheckResult) -> str:
    """One entry for everything that moved, worst first; fingerprints stay the same from run to run."""
    entries = [_entry(remark, result) for remark in remarks(result)]
    return json.dumps(entries, ensure_ascii=False, indent=2) + "\n"


def _in_the_repository(path: Path) -> str:
    """Relative to where the job runs, as GitLab looks for it; elsewhere as it is."""
    here = Path.cwd()
    return (path.relative_to(here) if path.is_relative_to(here) else path).as_posix()


def _entry(remark: Remark, result: CheckResult) -> dict[str, object]:
    path = _in_the_repository(Path(result.golden or "rollout-audit.toml"))
    named = f"{path}\n{remark.figure or remark.title + remark.text}"
    return {
        "description": remark.text,
        "check_name": f"rollout-audit/{remark.figure or remark.title}",
        "fingerprint": hashlib.sha256(utf8_as_named(named)).hexdigest(),
        "severity": SEVERITY[remark.kind],
        "location": {"path": path, "lines": {"begin": (result.golden_lines or {}).get(remark.figure or "", 1)}},
    }
