"""Show what came of `playhead perturb`, and write the smallest variations that break as fixtures."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from calls.perturbation.edits import AnswerEdit
from calls.perturbation.entries import override_entries, plain_json
from proxy.errors import Failure
from proxy.recording_file import write_whole
from proxy.terminal.table import Sheet
from proxy.terminal.text import count_text, print_table, printable, shorten
from proxy.trials.new_run import write_new_run
from proxy.trials.perturb import PerturbationResult, SmallestBreak, VariedRun
from store.bundle.bundle import Bundle, bundle_lines
from store.diff.steps import StepReader

MAX_REASON: Final = 200
RECORDING: Final = "recording.jsonl"


def write_fixtures(
    directory: Path,
    perturbed: PerturbationResult,
    bundle: Bundle,
    base: Sequence[Mapping[str, Any]],
    reading: StepReader,
) -> list[dict[str, str]]:
    """Write the recording once, and an override and the broken run for each smallest break. Raises Failure."""
    if not perturbed.smallest:
        return []
    written: list[dict[str, str]] = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_whole(directory / RECORDING, bundle_lines(bundle))
        for number, one in enumerate(perturbed.smallest, 1):
            file = directory / f"override-{number}.json"
            entries = [*override_entries(perturbed.answers, one.edits), *base]
            file.write_text(json.dumps({"override": entries}, indent=2, ensure_ascii=False) + "\n", "utf-8")
            run = directory / f"broken-{number}.jsonl"
            run.unlink(missing_ok=True)
            written_run = write_new_run(directory, run.name, one.result.exchanges, reading)
            written.append({"recording": str(directory / RECORDING), "override": str(file), "run": str(written_run)})
    except OSError as error:
        raise Failure(f"cannot write into {directory}: {error.strerror}; name another directory with --keep") from error
    return written


def show_perturbed(perturbed: PerturbationResult, fixtures: Sequence[Mapping[str, str]], sheet: Sheet) -> None:
    """Print what was varied, how often, and what broke."""
    rows = [
        (row["kind"], str(row["tried"]), str(row["broke"]), str(row["could_not_go_on"]), "; ".join(row["what_broke"]))
        for row in table_rows(perturbed.runs)
    ]
    print_table(("WHAT VARIED", "TRIED", "BROKE", "COULD NOT GO ON", "WHAT BROKE"), rows)
    click.echo()
    for one, files in zip(perturbed.smallest, fixtures, strict=True):
        sheet.print_sentence(f"smallest variation that breaks: {printable(one.finding.signature)}", "bad")
        for edit in one.edits:
            sheet.print_sentence(f"  {printable(edit_text(edit))}")
        for reason in one.finding.reasons:
            sheet.print_sentence(f"  {printable(shorten(reason, MAX_REASON))}")
        sheet.print_sentence(f"  override: {printable(files['override'])}    the broken run: {printable(files['run'])}")
    stuck = next((run for run in perturbed.runs if run.finding.effect == "could not go on"), None)
    if stuck is not None:
        sheet.print_sentence(f"could not go on: {printable(shorten(stuck.finding.reasons[0], MAX_REASON))}", "warn")
    counts = _counts(perturbed.runs)
    text = ", ".join(f"{count} {effect}" for effect, count in counts.items() if count)
    style = "bad" if counts["broke"] else "good" if counts["held"] == len(perturbed.runs) else "warn"
    sheet.print_sentence(f"{count_text(len(perturbed.runs), 'variation')}: {text}", style)


def _counts(runs: Sequence[VariedRun]) -> dict[str, int]:
    effects = ("held", "broke", "could not go on", "cannot tell")
    return {effect: sum(run.finding.effect == effect for run in runs) for effect in effects}


def table_rows(runs: Sequence[VariedRun]) -> list[dict[str, Any]]:
    """Return a row for each kind of edit: a variation with several edits counts for each of their kinds."""
    rows: dict[str, dict[str, Any]] = {}
    for run in runs:
        for kind in dict.fromkeys(edit.kind for edit in run.variation.edits):
            row = rows.setdefault(
                kind, {"kind": kind, "tried": 0, "broke": 0, "could_not_go_on": 0, "cannot_tell": 0, "what_broke": []}
            )
            row["tried"] += 1
            column = run.finding.effect.replace(" ", "_")
            if column in row:
                row[column] += 1
            if run.finding.effect == "broke" and run.finding.signature not in row["what_broke"]:
                row["what_broke"].append(run.finding.signature)
    return sorted(rows.values(), key=lambda row: (-row["broke"], row["kind"]))


def edit_text(edit: AnswerEdit) -> str:
    """Return an edit in one line."""
    value = ""
    if edit.fault is not None:
        value = f": {json.dumps(dict(edit.fault))}"
    elif edit.operations and "value" in edit.operations[0] and edit.renamed is None:
        value = f": {json.dumps(plain_json(edit.operations[0]['value']), ensure_ascii=False)}"
    return shorten(f"{edit.kind}, {edit.place}{value}", MAX_REASON)


def perturbed_json(
    perturbed: PerturbationResult, fixtures: Sequence[Mapping[str, str]], *, run: str, seed: int, command: Sequence[str]
) -> dict[str, Any]:
    """Return the results as JSON."""
    return {
        "run": run,
        "seed": seed,
        "command": list(command),
        "verdict": "broke" if perturbed.has_broken else "held",
        "counts": _counts(perturbed.runs),
        "proposals": perturbed.proposals,
        "table": table_rows(perturbed.runs),
        "variations": [_variation_json(one, perturbed) for one in perturbed.runs],
        "smallest": [_smallest_json(one, files) for one, files in zip(perturbed.smallest, fixtures, strict=True)],
    }


def _variation_json(one: VariedRun, perturbed: PerturbationResult) -> dict[str, Any]:
    return {
        "number": one.variation.number,
        "edits": [_edit_json(edit) for edit in one.variation.edits],
        "override": override_entries(perturbed.answers, one.variation.edits),
        "effect": one.finding.effect,
        "reasons": list(one.finding.reasons),
        "exit_code": one.result.code,
        "seconds": round(one.result.seconds, 3),
    }


def _edit_json(edit: AnswerEdit) -> dict[str, Any]:
    return {"kind": edit.kind, "group": edit.group, "step": edit.step, "text": edit_text(edit)}


def _smallest_json(one: SmallestBreak, files: Mapping[str, str]) -> dict[str, Any]:
    return {
        "signature": one.finding.signature,
        "reasons": list(one.finding.reasons),
        "edits": [_edit_json(edit) for edit in one.edits],
        "from_variation": one.from_variation,
        "trials": one.trials,
        **files,
    }
