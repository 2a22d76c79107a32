"""JUnit XML: one case a metric and scope."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree as ET

from rollout_audit.golden.compare import Comparison
from rollout_audit.golden.result import CheckResult
from rollout_audit.golden.sentences import sentence
from rollout_audit.reports.tables import printable

__all__ = ["junit_xml"]

SUITE = "rollout-audit check"


def junit_xml(result: CheckResult) -> str:
    """A suite of all comparisons, unchanged ones too; worse is a failure, unmeasured an error, but for an update."""
    cases = [
        _case(row, result)
        for row in sorted(result.rows, key=lambda row: (row.key.subject, row.key.scope, str(row.key)))
    ]
    cases += _other_cases(result)
    kinds = [child.tag for case in cases for child in case]
    counts = {"tests": len(cases), "failures": kinds.count("failure"), "errors": kinds.count("error")}
    suite = ET.Element("testsuite", {"name": SUITE, **{name: str(count) for name, count in counts.items()}})
    suite.extend(cases)
    if result.notes:
        ET.SubElement(suite, "system-out").text = _lines(result.notes)
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def _lines(lines: Sequence[str]) -> str:
    """Characters that XML cannot hold are spelt out."""
    return "\n".join(map(printable, lines))


def _case(row: Comparison, result: CheckResult) -> ET.Element:
    where = f"{row.key.subject or 'mismatch'}@{row.key.scope}"
    case = _named(where, row.key.metric)
    tags = {"worse": "failure", "unmeasured": "error"}
    if row.verdict in tags and not result.updated:
        _add(case, tags[row.verdict], row.verdict, sentence(row))
    elif row.changed:
        ET.SubElement(case, "system-out").text = printable(sentence(row))
    return case


def _other_cases(result: CheckResult) -> list[ET.Element]:
    """What stopped the check; else gates, and the promise of bitwise agreement."""
    if result.stopped is not None:
        case = _named("input", "can be checked")
        _add(case, "error", "stopped", result.stopped)
        return [case]
    tags = {"failed": "failure", "unmeasured": "error", "warning": "system-out"}
    cases = []
    for gate in result.gates:
        cases.append(case := _named("gates", printable(gate.gate.text)))
        if gate.verdict in tags:
            text = printable(gate.text)
            attributes = {} if gate.verdict == "warning" else {"type": gate.verdict, "message": text}
            ET.SubElement(case, tags[gate.verdict], attributes).text = text
    if (agreed := result.agreement) is not None:
        cases.append(case := _named("bitwise", "d = 0 on every valid token"))
        if agreed.first is not None:
            _add(case, "failure", "bitwise", agreed.first.text)
        elif agreed.left_out:
            _add(case, "error", "bitwise", agreed.text)
    if result.gaps:
        cases.append(case := _named("golden", "holds what was approved"))
        _add(case, "error", "gaps", "; ".join(result.gaps))
    return cases


def _add(case: ET.Element, tag: str, kind: str, text: str) -> None:
    ET.SubElement(case, tag, {"type": kind, "message": printable(text)}).text = printable(text)


def _named(where: str, name: str) -> ET.Element:
    return ET.Element("testcase", {"classname": f"{SUITE}.{printable(where)}", "name": name})
