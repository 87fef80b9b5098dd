"""What a replay came to, for the page of the job: run by any Python 3, with nothing of ours installed.

Usage: summary.py REPORT RECORDING CODE. Writes to the files that GITHUB_STEP_SUMMARY and GITHUB_OUTPUT name, and the
first miss as an annotation to stdout. What was asked comes from the code under test: it is shown, never interpreted.
"""

import json
import os
import re
import sys

SHOWN = 10
COUNTS = ("served", "missed", "live", "unused", "edited", "ambiguous", "drifted")


def main(report_file, recording, code):
    """Say it in the three places where it is read."""
    report = read(report_file)
    write("GITHUB_STEP_SUMMARY", summary(report, recording, code))
    write("GITHUB_OUTPUT", f"verdict={report.get('verdict', 'unknown')}\nreport={report_file}\n")
    for miss in report.get("misses", [])[:1]:
        sys.stdout.write(f"::error title=Not recorded::{escaped(miss['detail'])}\n")


def read(file):
    """The report, or nothing where the replay left none."""
    try:
        with open(file, encoding="utf-8") as content:
            return json.load(content)
    except (OSError, ValueError):
        return {}


def write(name, text):
    """Append to the file that a variable of the runner names."""
    with open(os.environ[name], "a", encoding="utf-8") as file:
        file.write(text)


def summary(report, recording, code):
    """The page, in Markdown."""
    if not report:
        why = f"The replay of {quoted(recording)} did not begin (exit code {code}); see the log of the step."
        return f"## Playhead: no report\n\n{why}\n"
    verdict = report["verdict"]
    lines = [f"## Playhead: the replay was {verdict}", "", f"{quoted(recording)}, exit code {code}", ""]
    lines += ["| " + " | ".join(COUNTS) + " |", "|" + " ---: |" * len(COUNTS)]
    lines += ["| " + " | ".join(str(report.get(name, 0)) for name in COUNTS) + " |", ""]
    for miss in report.get("misses", [])[:SHOWN]:
        lines += explained(miss)
    if report.get("missed", 0) > SHOWN:
        lines += [f"… and {report['missed'] - SHOWN} more misses, in the report.", ""]
    left = report.get("unused_steps", [])
    if left and verdict != "right":
        lines += ["### Recorded, and not asked for", ""]
        lines += [fenced("\n".join(f"step {one['step']}: {one['asked']}" for one in left[:SHOWN])), ""]
    return "\n".join(lines) + "\n"


def explained(miss):
    """One miss: what was asked, how it differs from what was recorded, what would mend it."""
    lines = [f"### Request {miss['number']} was not recorded ({miss['reason']})", "", fenced(miss["asked"]), ""]
    nearest = miss.get("nearest") or {}
    if nearest.get("differences"):
        lines += [f"The nearest recording is step {nearest['step']}. It differs at:", ""]
        lines += [fenced("\n".join(map(difference, nearest["differences"][:SHOWN])), "diff"), ""]
    if miss.get("fix"):
        lines += ["To fix it:", "", fenced("\n".join(miss["fix"].split("; or "))), ""]
    return lines


def difference(one):
    """A pointer with both values, as a diff shows them."""
    lines = [one["pointer"]]
    if one.get("only") != "now":
        lines.append("- " + json.dumps(one["recorded"], ensure_ascii=False))
    if one.get("only") != "recorded":
        lines.append("+ " + json.dumps(one["now"], ensure_ascii=False))
    return "\n".join(lines)


def fenced(text, language=""):
    """A block of code, whatever the text holds: its fence is longer than any in it."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def quoted(text):
    """A line of code."""
    words = " ".join(text.replace("`", "'").split())
    return f"`{words}`"


def escaped(text):
    """As a workflow command's message."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


if __name__ == "__main__":
    main(*sys.argv[1:])
