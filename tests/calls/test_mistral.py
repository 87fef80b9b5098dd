"""Mistral's own SDK as the judge of its streams, in an environment of its own (see `mistral_judge`)."""

import base64
import json
import subprocess
from pathlib import Path

import pytest

from calls.codec.json import dumps
from tests.calls.judging import streams, unpacked_body
from tests.frameworks.environments import MISTRAL, python

JUDGE = Path(__file__).with_name("mistral_judge.py")


@pytest.mark.slow
def test_every_stream_of_mistral_says_what_its_sdk_says() -> None:
    found = [(recorded, call) for _, recorded, call in streams("openai_chat") if call.provider == "mistral_ai"]
    if not found:
        pytest.skip("the corpus, or its streams of Mistral, are not here")
    interpreter = python(*MISTRAL)
    lines = "\n".join(base64.b64encode(unpacked_body(recorded)).decode() for recorded, _ in found)
    # Without its own directory on the path: what lies there is not for it.
    judged = subprocess.run([interpreter, "-P", JUDGE], input=lines, capture_output=True, text=True, check=False)
    assert judged.returncode == 0, judged.stderr
    for (_, call), line in zip(found, judged.stdout.splitlines(), strict=True):
        theirs = json.loads(line)
        answer = json.loads(dumps(call.answer))
        ours = {
            "id": answer["id"],
            "model": call.model_returned,
            "text": call.text or "",
            "calls": [[tool.id, tool.name, json.loads(dumps(tool.arguments))] for tool in call.tool_calls],
            "finish": call.finish_reason,
            "tokens": [call.usage.input_tokens, call.usage.output_tokens] if theirs["tokens"] else None,
        }
        theirs["calls"] = [[name, tool, json.loads(written)] for name, tool, written in theirs["calls"]]
        assert ours == theirs
