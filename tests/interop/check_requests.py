"""Checks every request that the tests recorded against the types of the `openai` package: `check_requests.py FOLDER`.

Each file holds one request a line. The package's own client sends what its types allow, so what they refuse no
OpenAI-compatible server has to take.
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import get_type_hints

from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolUnionParam
from openai.types.chat.completion_create_params import (
    CompletionCreateParamsNonStreaming,
    CompletionCreateParamsStreaming,
)
from pydantic import TypeAdapter

MESSAGE = TypeAdapter(ChatCompletionMessageParam)
TOOL = TypeAdapter(ChatCompletionToolUnionParam)
PLAIN = TypeAdapter(CompletionCreateParamsNonStreaming)
STREAMED = TypeAdapter(CompletionCreateParamsStreaming)
PARAMETERS = get_type_hints(CompletionCreateParamsStreaming).keys()


def check(body):
    unknown = body.keys() - PARAMETERS
    if unknown:
        raise ValueError(f"unknown parameters: {', '.join(sorted(unknown))}")
    exhaust((STREAMED if body.get("stream") else PLAIN).validate_python(body))
    for message in body["messages"]:
        exhaust(MESSAGE.validate_python(message))
    for tool in body.get("tools", []):
        exhaust(TOOL.validate_python(tool))


def exhaust(value):
    """Reads what pydantic checks only when it is read."""
    if isinstance(value, dict):
        value = value.values()
    if isinstance(value, Iterable) and not isinstance(value, str):
        for part in value:
            exhaust(part)


def main():
    count = 0
    for file in sorted(Path(sys.argv[1]).iterdir()):
        # Not by `splitlines`: a text may hold what it takes for the end of a line.
        for line in filter(None, file.read_text(encoding="utf-8").split("\n")):
            try:
                check(json.loads(line))
            except ValueError as error:  # pydantic's errors are of this class
                sys.exit(f"the openai package refuses a request of {file.name}: {error}\n{line[:2000]}")
            count += 1
    print(f"the openai package takes each of {count} recorded requests")


main()
