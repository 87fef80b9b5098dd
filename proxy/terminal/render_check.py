"""Show the results of `playhead check`: for people, as JSON, and as JUnit XML."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final
from xml.etree import ElementTree

from calls.checking.check import CheckResult, RuleResult
from calls.checking.rules import RuleFinding
from proxy.terminal.table import Sheet
from proxy.terminal.text import count_text, printable

_NOT_XML: Final = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 (2.2) does not have, not even as references."""


def show_check(results: Sequence[CheckResult], spec: str, sheet: Sheet) -> None:
    """Print one line for each run, and one for each finding."""
    for result in results:
        sheet.print_sentence(f"{printable(result.run)}: {_summary(result)}", _STYLES[result.verdict])
        for rule in result.rules:
            for finding in rule.findings:
                sheet.print_sentence(f"  {printable(_finding_line(spec, rule, finding))}")


_STYLES: Final = {"pass": "good", "fail": "bad", "unknown": "warn"}


def _summary(result: CheckResult) -> str:
    count = {name: sum(rule.verdict == name for rule in result.rules) for name in ("pass", "fail", "unknown")}
    parts = [
        f"{count['pass']} of {count_text(len(result.rules), 'rule')} {'holds' if len(result.rules) == 1 else 'hold'}"
    ]
    parts += [f"{count['fail']} broken"] if count["fail"] else []
    parts += [f"{count['unknown']} cannot be decided"] if count["unknown"] else []
    return f"{', '.join(parts)} ({count_text(result.steps, 'step')})"


def _finding_line(spec: str, rule: RuleResult, finding: RuleFinding) -> str:
    place = spec if rule.rule.line is None else f"{spec}:{rule.rule.line}"
    where = "" if finding.step is None else f"step {finding.step}: "
    undecided = "cannot be decided: " if finding.is_undecided else ""
    return f"{place} {rule.rule.title}: {where}{undecided}{finding.message}"


def check_json(results: Sequence[CheckResult], spec: str, verdict: str) -> dict[str, Any]:
    """Return the results as JSON."""
    return {
        "verdict": verdict,
        "spec": spec,
        "runs": [
            {
                "run": result.run,
                "verdict": result.verdict,
                "steps": result.steps,
                "rules": [
                    {
                        "rule": rule.rule.title,
                        "line": rule.rule.line,
                        "verdict": rule.verdict,
                        "findings": [
                            {"step": one.step, "message": one.message, "undecided": one.is_undecided}
                            for one in rule.findings
                        ],
                    }
                    for rule in result.rules
                ],
            }
            for result in results
        ],
    }


def junit_xml(results: Sequence[CheckResult], spec: str) -> bytes:
    """Return JUnit XML: a test suite for each run, a test case for each rule. What cannot be decided is an error."""
    root = ElementTree.Element("testsuites", name="playhead check")
    for result in results:
        failed = sum(rule.verdict == "fail" for rule in result.rules)
        undecided = sum(rule.verdict == "unknown" for rule in result.rules)
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=xml_text(result.run),
            tests=str(len(result.rules)),
            failures=str(failed),
            errors=str(undecided),
            skipped="0",
        )
        for rule in result.rules:
            place = {} if rule.rule.line is None else {"line": str(rule.rule.line)}
            case = ElementTree.SubElement(
                suite,
                "testcase",
                {"name": xml_text(rule.rule.title), "classname": xml_text(result.run), "file": xml_text(spec)} | place,
            )
            if rule.findings:
                lines = [xml_text(line) for line in _finding_lines(rule)]
                kind = "failure" if rule.verdict == "fail" else "error"
                ElementTree.SubElement(case, kind, message=lines[0]).text = "\n".join(lines)
    ElementTree.indent(root)
    text: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def _finding_lines(rule: RuleResult) -> Iterator[str]:
    for finding in rule.findings:
        yield finding.message if finding.step is None else f"step {finding.step}: {finding.message}"


def xml_text(text: str) -> str:
    """Return a text without the characters that XML does not have."""
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
