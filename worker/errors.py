"""The error tree: one root, and one child for each side that can be at fault.

WorkerError
|-- ConfigurationError   the environment; carries every problem found, exit code 2
|-- RequestError         one job; carries an OpenAI-shaped error body
`-- EngineError          the engine
    |-- EngineBootError  it did not start; carries the child's own cause
    `-- EngineGone       it died under running jobs
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


class WorkerError(Exception):
    """Root of everything this project raises on purpose."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with the configuration.

    `value` is what was given, already shortened and free of secrets, or None
    where the variable is missing. `why` and `fix` are sentences without a final stop.
    """

    variable: str
    value: str | None
    why: str
    fix: str = ""

    def __str__(self) -> str:
        given = self.variable if self.value is None else f"{self.variable}={self.value}"
        return f"{given}: {self.why}." + (f" {self.fix}." if self.fix else "")


class ConfigurationError(WorkerError):
    """The environment cannot be served as it stands; all problems together."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


class RequestError(WorkerError):
    """A job that cannot be answered, in the terms of OpenAI's error object.

    `code` is the HTTP status a web server would have sent; `param` names the
    offending field; `hint` says what to send instead.
    """

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: int = 400,
        kind: str = "BadRequestError",
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.kind = kind
        self.hint = hint

    def body(self) -> Mapping[str, object]:
        """The error object: message, type, code, param and hint."""
        return {
            "message": self.message,
            "type": self.kind,
            "code": self.code,
            "param": self.param,
            "hint": self.hint,
        }


class EngineError(WorkerError):
    """The engine is at fault, not the job."""


class EngineBootError(EngineError):
    """The engine did not start; the message is the root cause in one sentence.

    `of_child` says that a child failed, with weights, memory or device: such a failure may
    not come again, whereas what this process refuses will.
    """

    def __init__(self, message: str, *, of_child: bool = False) -> None:
        super().__init__(message)
        self.of_child = of_child


class EngineGone(EngineError):
    """The engine died or was shut down while jobs were running."""
