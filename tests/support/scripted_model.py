"""A model that says what was written down for it, one answer after the other, and keeps what it was asked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

#: An assistant's turns: its first code fails, its second passes and saves a plot.
FAILS = """Let us define it.
```python
def median(values):
    ordered = sorted(values)
    return ordered[len(ordered) / 2]

data = [5, 3, 8, 1, 9]
print("median", median(data))
```
"""
PASSES = """The index must be a whole number; `data` is still there.
```python
def median(values):
    ordered = sorted(values)
    return ordered[len(ordered) // 2]

print("median", median(data))
```
```python
import matplotlib.pyplot as plt
plt.bar(range(len(data)), sorted(data))
plt.savefig("plot.png")
```
"""
ENDS = "The median is 5, and plot.png shows the values. TERMINATE"
CONVERSATION = (FAILS, PASSES, ENDS)


class ScriptedModel:
    """AG2's protocol of a model client."""

    def __init__(self, _: dict[str, Any], *, answers: tuple[str, ...], asked: list[str]) -> None:
        self.answers = list(answers)
        self.asked = asked

    def create(self, params: dict[str, Any]) -> Any:
        self.asked.append(str(params["messages"][-1]["content"]))
        message = SimpleNamespace(content=self.answers.pop(0), function_call=None, tool_calls=None)
        return SimpleNamespace(choices=[SimpleNamespace(message=message)], model="scripted")

    def message_retrieval(self, response: Any) -> list[str]:
        return [choice.message.content for choice in response.choices]

    def cost(self, _: Any) -> float:
        return 0.0

    @staticmethod
    def get_usage(_: Any) -> dict[str, Any]:
        return {}
