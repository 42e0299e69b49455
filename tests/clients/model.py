"""A model that makes the calls of the scenario, one after the other, over the APIs of OpenAI (both) and Anthropic."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.clients.scenario import STEPS, Answer

_FINAL = "done"
_USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}


class StubModel:
    """What was asked of the model: the names of its tools, and the answers to its calls."""

    def __init__(self) -> None:
        self.tools: list[str] = []
        self.answers: list[Answer] = []
        self.kept: dict[str, list[Answer]] = {}  # by the id of a reply, for clients that go on from it and do not repeat them

    def choose(self, tools: Sequence[str], answers: list[Answer]) -> tuple[str, dict[str, Any]] | None:
        """Return the next call for a conversation with these answers; None at its end."""
        self.tools = list(tools) or self.tools
        self.answers = max(self.answers, answers, key=len)
        if len(answers) < len(STEPS):
            tool, arguments = STEPS[len(answers)].call(answers)
            return _resolve(tool, tools), arguments
        return ("final_answer", {"answer": _FINAL}) if "final_answer" in tools and len(answers) == len(STEPS) else None


def _resolve(name: str, tools: Sequence[str]) -> str:
    """Return the name that the client gave a tool: some put that of the server before it."""
    return next((tool for tool in tools if tool == name), next((tool for tool in tools if tool.endswith(name)), name))


def _chat_answers(messages: Sequence[Mapping[str, Any]]) -> list[Answer]:
    """Return the answers to calls in a conversation; pictures follow in a message of the user's."""
    answers: list[Answer] = []
    for message in messages:
        text, pictures = _read_parts(message.get("content"))
        if message["role"] == "tool" or text.startswith("Observation:"):  # as smolagents gives it
            answers.append(Answer(text))  # the API allows no picture there
        elif message["role"] in ("user", "system") and answers:
            answers[-1] = Answer(answers[-1].text + text, answers[-1].pictures + pictures)
    return answers


def _read_parts(content: object) -> tuple[str, int]:
    """Return the text of a message, and the number of its pictures."""
    if isinstance(content, str):
        return content, 0
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    inner = [_read_parts(part["content"]) for part in parts if part.get("type") == "tool_result" and part.get("content")]
    texts = [str(part.get("text", "")) for part in parts if part.get("type") in ("text", "input_text")]
    pictures = sum(part.get("type") in ("image", "image_url", "input_image") for part in parts)
    return "".join([*texts, *(text for text, _ in inner)]), pictures + sum(count for _, count in inner)


def _responses_answers(items: Sequence[Mapping[str, Any]] | str) -> list[Answer]:
    outputs = [item["output"] for item in items if isinstance(item, dict) and item.get("type") == "function_call_output"]
    return [Answer(*_read_parts(output)) for output in outputs]


def _anthropic_answers(messages: Sequence[Mapping[str, Any]]) -> list[Answer]:
    blocks = [block for message in messages if isinstance(message["content"], list) for block in message["content"]]
    return [Answer(*_read_parts([block])) for block in blocks if block.get("type") == "tool_result"]


class _Handler(BaseHTTPRequestHandler):
    model: StubModel
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path == "/answers":
            self.model.tools, self.model.answers = body["tools"], [Answer(**answer) for answer in body["answers"]]
            self._respond([{}], {})
            return
        path = self.path.partition("?")[0]
        if path.endswith("/messages"):
            answers, write, split = _anthropic_answers(body["messages"]), _anthropic_message, _anthropic_events
        elif path.endswith("/responses"):
            answers, write, split = _responses_answers(body["input"]), _responses_message, _responses_events
        else:
            answers, write, split = _chat_answers(body["messages"]), _chat_message, _chat_events
        tools = [name for tool in body.get("tools") or [] if (name := tool.get("function", tool).get("name"))]
        before = body.get("previous_response_id") or (body.get("thread") or {}).get("previous_message_id")
        answers = self.model.kept.get(before or "", []) + answers
        whole = write(self.model.choose(tools, answers), len(answers))
        self.model.kept[whole["id"]] = answers
        self._respond(split(whole) if body.get("stream") else [whole], body)

    def _respond(self, objects: Sequence[Mapping[str, Any]], body: Mapping[str, Any]) -> None:
        if body.get("stream"):
            names = [f"event: {item['type']}\n" if "type" in item else "" for item in objects]
            events = "".join(f"{name}data: {json.dumps(item)}\n\n" for name, item in zip(names, objects, strict=True))
            content, kind = (events + ("" if all(names) else "data: [DONE]\n\n")).encode(), "text/event-stream"
        else:
            content, kind = json.dumps(objects[0]).encode(), "application/json"
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def _chat_message(chosen: tuple[str, dict[str, Any]] | None, number: int) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": _FINAL if chosen is None else None}
    if chosen is not None:
        function = {"name": chosen[0], "arguments": json.dumps(chosen[1])}
        message["tool_calls"] = [{"id": f"call_{number}", "type": "function", "function": function}]
    choice = {"index": 0, "message": message, "finish_reason": "stop" if chosen is None else "tool_calls"}
    return {"id": "1", "object": "chat.completion", "created": 0, "model": "stub", "choices": [choice], "usage": _USAGE}


def _chat_events(whole: Mapping[str, Any]) -> list[dict[str, Any]]:
    message = whole["choices"][0]["message"]
    calls = [{"index": 0, **call} for call in message.get("tool_calls", [])]
    delta = {"role": "assistant", "content": message["content"], **({"tool_calls": calls} if calls else {})}
    chunk = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "stub"}
    ends = {"index": 0, "delta": {}, "finish_reason": whole["choices"][0]["finish_reason"]}
    return [
        {**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {**chunk, "choices": [ends]},
        {**chunk, "choices": [], "usage": _USAGE},
    ]


def _responses_message(chosen: tuple[str, dict[str, Any]] | None, number: int) -> dict[str, Any]:
    item: dict[str, Any] = {"id": f"item_{number}", "status": "completed"}
    if chosen is None:
        text = {"type": "output_text", "text": _FINAL, "annotations": []}
        item |= {"type": "message", "role": "assistant", "content": [text]}
    else:
        item |= {"type": "function_call", "call_id": f"call_{number}", "name": chosen[0], "arguments": json.dumps(chosen[1])}
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 0,
        "status": "completed",
        "model": "stub",
        "output": [item],
        "parallel_tool_calls": False,
        "tool_choice": "auto",
        "tools": [],
        "usage": usage | details,
    }


def _responses_events(whole: Mapping[str, Any]) -> list[dict[str, Any]]:
    [item] = whole["output"]
    position = {"item_id": item["id"], "output_index": 0}
    if item["type"] == "message":
        first = item | {"content": []}
        delta = {"type": "response.output_text.delta", "content_index": 0, "delta": _FINAL, "logprobs": [], **position}
    else:
        first = item | {"arguments": ""}
        delta = {"type": "response.function_call_arguments.delta", "delta": item["arguments"], **position}
    events = [
        {"type": "response.created", "response": {**whole, "status": "in_progress", "output": [], "usage": None}},
        {"type": "response.output_item.added", "output_index": 0, "item": first | {"status": "in_progress"}},
        delta,
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": whole},
    ]
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


def _anthropic_message(chosen: tuple[str, dict[str, Any]] | None, number: int) -> dict[str, Any]:
    block = (
        {"type": "text", "text": _FINAL}
        if chosen is None
        else {"type": "tool_use", "id": f"toolu_{number}", "name": chosen[0], "input": chosen[1]}
    )
    return {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": "stub",
        "content": [block],
        "stop_reason": "end_turn" if chosen is None else "tool_use",
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }


def _anthropic_events(whole: Mapping[str, Any]) -> list[dict[str, Any]]:
    [block] = whole["content"]
    first: dict[str, Any]
    if block["type"] == "text":
        first, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": block["text"]}
    else:
        first, delta = {**block, "input": {}}, {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
    return [
        {"type": "message_start", "message": {**whole, "content": [], "stop_reason": None}},
        {"type": "content_block_start", "index": 0, "content_block": first},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": whole["stop_reason"], "stop_sequence": None},
            "usage": {"output_tokens": 1},
        },
        {"type": "message_stop"},
    ]


@contextmanager
def serving() -> Iterator[tuple[StubModel, str]]:
    """Serve a model on this machine; yield it and its address."""
    model = StubModel()
    handler = type("Handler", (_Handler,), {"model": model})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield model, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
