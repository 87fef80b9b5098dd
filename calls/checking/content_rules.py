"""Rules on what was said: answers, secrets in prompts, retrieved documents, and values that must come from elsewhere in the run."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal

import msgspec

from calls.checking.checked_run import CheckedRun, CheckedStep, parse_if_json, walk_values
from calls.checking.conditions import compile_pattern, equal_values, pattern_error, show_value
from calls.checking.rules import Rule, RuleFinding, path_error, step_name, values_at
from calls.checking.selection import fits_any, select_tools
from calls.model import Json
from calls.placeholder import PATTERN

_NO_TEXT: Final = "the answer has no text"


class AnswerRule(Rule, tag="answer", kw_only=True, frozen=True):
    """What the answers of models must be."""

    which: Literal["last", "every"] = "last"
    """`last`: the last answer of a model that requests no tools. `every`: every answer that has a text."""

    models: tuple[str, ...] = ()
    schema: dict[str, Any] | None = None
    """A JSON Schema that the text must satisfy as JSON. References are resolved within the schema only."""

    contains: tuple[str, ...] = ()
    pattern: str | None = None
    """A regular expression (RE2) that must be found in the text."""

    forbidden_pattern: str | None = None

    def mistake(self) -> str | None:
        if self.schema is None and not self.contains and self.pattern is None and self.forbidden_pattern is None:
            return "it demands nothing: give `schema`, `contains`, `pattern` or `forbidden_pattern`"
        for pattern in (self.pattern, self.forbidden_pattern):
            if pattern is not None and (why := pattern_error(pattern)):
                return why
        return None if self.schema is None else _schema_error(self.schema)

    def findings(self, run: CheckedRun) -> Iterator[RuleFinding]:
        steps = [
            step
            for step in run.steps
            if step.call.kind == "model" and (not self.models or (step.model and fits_any(step.model, self.models)))
        ]
        if self.which == "every":
            selected = [step for step in steps if step.call.text]
        else:
            selected = [step for step in steps if not step.call.tool_calls][-1:]
        if not selected:
            yield RuleFinding("no model gave a final answer")
        for step in selected:
            yield from (RuleFinding(f"{step_name(step)}: {words}", step.number) for words in self._broken_parts(step))

    def _broken_parts(self, step: CheckedStep) -> Iterator[str]:
        text = step.call.text
        if text is None:
            yield _NO_TEXT
            return
        for part in self.contains:
            if part not in text:
                yield f"the answer does not contain {show_value(part)}: it is {show_value(text)}"
        if self.pattern is not None and compile_pattern(self.pattern).search(text) is None:
            yield f"the answer does not match {self.pattern!r}: it is {show_value(text)}"
        if self.forbidden_pattern is not None and (found := compile_pattern(self.forbidden_pattern).search(text)):
            yield f"the answer contains {show_value(found.group())}, which matches {self.forbidden_pattern!r}"
        if self.schema is not None:
            yield from _schema_findings(self.schema, text)


def _schema_error(schema: Mapping[str, Any]) -> str | None:
    # Imported where a spec has a schema: it takes as long to import as the rest of the command.
    import jsonschema

    try:
        jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator).check_schema(schema)
    except jsonschema.SchemaError as error:
        return f"invalid schema: {error.message} at {error.json_path}"
    references = [value for pointer, value in walk_values(schema) if pointer.endswith("/$ref")]
    elsewhere = next((str(value) for value in references if not str(value).startswith("#")), None)
    return None if elsewhere is None else f"invalid schema: {elsewhere} is not in it; references start with #"


def _schema_findings(schema: Mapping[str, Any], text: str) -> Iterator[str]:
    import jsonschema
    import referencing

    value = parse_if_json(text)
    if value is text:
        yield f"the answer is not JSON: it is {show_value(text)}"
        return
    kind = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    # An empty registry: no reference is fetched from anywhere.
    validator = kind(schema, registry=referencing.Registry())
    try:
        errors = sorted(validator.iter_errors(value), key=lambda each: str(each.json_path))
    except (referencing.exceptions.Unresolvable, RecursionError):
        yield "the schema has a reference that leads nowhere, or to itself"
        return
    yield from (f"{error.json_path}: {error.message[:300]}" for error in errors)


class NoSecretRule(Rule, tag="no-secret", kw_only=True, frozen=True):
    """No secret is in a prompt: no placeholder that redaction left, and none of these patterns."""

    patterns: tuple[str, ...] = ()

    def mistake(self) -> str | None:
        return next(filter(None, map(pattern_error, self.patterns)), None)

    def findings(self, run: CheckedRun) -> Iterator[RuleFinding]:
        expressions = [compile_pattern(pattern) for pattern in (PATTERN, *self.patterns)]
        for step in run.steps:
            if step.call.kind != "model":
                continue
            for pointer, value in walk_values(step.call.request):
                if isinstance(value, str) and any(each.search(value) for each in expressions):
                    yield RuleFinding(f"the prompt of {step_name(step)} has a secret at {pointer}", step.number)
                    break


class RetrievedRule(Rule, tag="retrieved", kw_only=True, frozen=True):
    """A document was retrieved."""

    document: str
    """A pattern of its id, title or another text of its own that a result has."""

    at: str | None = None
    """An RFC 9535 path to these texts in the results; without it, any text of a result."""

    tools: tuple[str, ...] = ()
    """Tools whose results count as retrieved, besides calls of the kind `retrieval`. Without it, all tools."""

    def mistake(self) -> str | None:
        return None if self.at is None else path_error(self.at)

    def findings(self, run: CheckedRun) -> Iterator[RuleFinding]:
        found = list(retrieved_texts(run, self.tools, self.at))
        if not any(fits_any(text, [self.document]) for _, text in found):
            yield RuleFinding(f"{self.document} was not retrieved; {_list_some([text for _, text in found])}")


class GroundedRule(Rule, tag="grounded", kw_only=True, frozen=True):
    """What the answer cites was retrieved before."""

    citation: str
    """A regular expression (RE2) whose first group is the id that a text cites, such as `\\[(doc-[0-9]+)\\]`."""

    at: str | None = None
    """An RFC 9535 path to the ids in the results; without it, any text of a result."""

    tools: tuple[str, ...] = ()
    min: int = 1
    """The least number of citations in the last answer."""

    def mistake(self) -> str | None:
        if why := pattern_error(self.citation):
            return why
        if compile_pattern(self.citation).groups < 1:
            return f"the pattern {self.citation!r} has no group: put the id in parentheses"
        return None if self.at is None else path_error(self.at)

    def findings(self, run: CheckedRun) -> Iterator[RuleFinding]:
        expression = compile_pattern(self.citation)
        retrieved = list(retrieved_texts(run, self.tools, self.at))
        answers = [step for step in run.steps if step.call.kind == "model" and step.call.text]
        for step in answers:
            known = {text for number, text in retrieved if number <= step.number}
            for cited in dict.fromkeys(match.group(1) for match in expression.finditer(step.call.text)):
                if cited not in known:
                    yield RuleFinding(f"the answer cites {cited}, which was not retrieved before", step.number)
        last = answers[-1] if answers else None
        count = len(list(expression.finditer(last.call.text or ""))) if last else 0
        if count < self.min:
            yield RuleFinding(
                f"the last answer has {count} citations, at least {self.min} expected", last.number if last else None
            )


def retrieved_texts(run: CheckedRun, tools: Iterable[str], at: str | None) -> Iterator[tuple[int, str]]:
    """Yield the texts of what was retrieved, each with the step from which on it is known."""
    patterns = list(tools) or ["*"]
    documents = [(step.number, parse_if_json(step.call.answer)) for step in run.steps if step.call.kind == "retrieval"]
    documents += [result for tool in select_tools(run, patterns) if (result := run.tool_result(tool))]
    for number, document in documents:
        values = [value for _, value in (walk_values(document) if at is None else values_at(at, document))]
        yield from ((number, _as_text(value)) for value in values if isinstance(value, str | int | float))


def _as_text(value: Json) -> str:
    return value if isinstance(value, str) else show_value(value)


def _list_some(texts: list[str]) -> str:
    short = [text for text in dict.fromkeys(texts) if len(text) <= 40][:8]
    return f"retrieved were {', '.join(short)}" if short else "nothing was retrieved"


class Source(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where in the run a value comes from: exactly one of `result_of`, `argument_of` and `user`."""

    result_of: str | None = None
    """A tool, in whose results before that step the value must be."""

    argument_of: str | None = None
    """A tool, in whose arguments before that step the value must be."""

    user: str | None = None
    """A regular expression (RE2). What it finds in the messages of the user; its first group, if it has one."""

    at: str = "$"
    """An RFC 9535 path into the result or the arguments."""

    def mistake(self) -> str | None:
        """Return what is wrong with the source; None if it is valid."""
        if sum(one is not None for one in (self.result_of, self.argument_of, self.user)) != 1:
            return "`source` needs exactly one of `result_of`, `argument_of` and `user`"
        return path_error(self.at) if self.user is None else pattern_error(self.user)

    def values(self, run: CheckedRun, before: int) -> list[Json]:
        """Return the values of the source that were there before a step's answer."""
        if self.user is not None:
            expression = compile_pattern(self.user)
            group = 1 if expression.groups else 0
            return [match.group(group) for text in run.user_texts for match in expression.finditer(text)]
        found: list[Json] = []
        if self.result_of is not None:
            for tool in select_tools(run, [self.result_of]):
                result = run.tool_result(tool)
                if result is not None and result[0] <= before:
                    found += [value for _, value in values_at(self.at, _result_document(result[1]))]
        for tool in select_tools(run, [self.argument_of] if self.argument_of is not None else []):
            if tool.step < before:
                found += [value for _, value in values_at(self.at, tool.arguments)]
        return found


def _result_document(result: Json) -> Json:
    """Return the JSON in a result of one text block, as MCP and some APIs wrap it; any other result as it is."""
    if isinstance(result, Mapping) and isinstance(result.get("content"), list | tuple):
        result = parse_if_json(result["content"])
    if isinstance(result, list | tuple) and len(result) == 1 and isinstance(result[0], Mapping):
        inner = result[0].get("text")
        return result if inner is None else inner
    return result


class SameRule(Rule, tag="same", kw_only=True, frozen=True):
    """A value that a tool is called with is one that came from elsewhere in the run, such as the id that the user named."""

    tool: str
    at: str
    """An RFC 9535 path into the arguments of the tool."""

    source: Source

    def mistake(self) -> str | None:
        return path_error(self.at) or self.source.mistake()

    def findings(self, run: CheckedRun) -> Iterator[RuleFinding]:
        for tool in select_tools(run, [self.tool]):
            known = self.source.values(run, tool.step)
            found = values_at(self.at, tool.arguments)
            if not found:
                yield RuleFinding(
                    f"{tool.name} has no {self.at}: its arguments are {show_value(tool.arguments)}", tool.step
                )
            for pointer, value in found:
                if not any(_is_same(value, one) for one in known):
                    values = ", ".join(show_value(one) for one in known[:8]) or "no value yet"
                    yield RuleFinding(
                        f"{tool.name}{pointer} is {show_value(value)}, but {self._source_words()} has {values}",
                        tool.step,
                    )

    def _source_words(self) -> str:
        if self.source.user is not None:
            return "the user's text"
        if self.source.result_of is not None:
            return f"{self.source.at} in the result of {self.source.result_of}"
        return f"{self.source.at} in the arguments of {self.source.argument_of}"


def _is_same(value: Json, other: Json) -> bool:
    """Whether two values are equal; a number is the same as its digits in a text, because models write either."""
    return equal_values(value, other) or (
        isinstance(value, str) != isinstance(other, str) and _as_text(value) == _as_text(other)
    )
