"""What the stand-in knows about one job: its state, what arrived for it, and when.

Times are `time.monotonic()` seconds, which on Linux compare across processes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["IN_QUEUE", "IN_PROGRESS", "COMPLETED", "FAILED", "CANCELLED", "TIMED_OUT"]
PostRoute = Literal["stream", "done"]

FINAL: frozenset[Status] = frozenset({"COMPLETED", "FAILED", "CANCELLED", "TIMED_OUT"})


@dataclass(frozen=True)
class Chunk:
    """One yielded output; `size` is the body's length in bytes."""

    output: Any
    at: float
    size: int


@dataclass(frozen=True)
class Post:
    """One attempt of a worker to post, and the answer that was meant for it.

    The worker may have gone before a held or delayed answer was sent.
    """

    route: PostRoute
    at: float
    answer: int | Literal["abort"]


@dataclass(frozen=True)
class Ping:
    """One heartbeat, with the jobs that the worker said it was running."""

    worker_id: str
    at: float
    job_ids: tuple[str, ...]


@dataclass
class Job:
    """One job from submission to its end.

    `late_chunks` arrived after a cancel or a time-out; they are no defect, since
    the stop needs time to reach the worker. `final_posts` counts the final
    bodies that were read, `posts` every attempt. `stop_sent_at` is when the stop
    channel handed the job's id to its worker.
    """

    id: str
    input: Any
    submitted_at: float
    status: Status = "IN_QUEUE"
    worker_id: str | None = None
    chunks: list[Chunk] = field(default_factory=list)
    late_chunks: list[Chunk] = field(default_factory=list)
    progress: list[Any] = field(default_factory=list)
    output: Any = None
    error: Any = None
    stop_pod: bool = False
    posts: list[Post] = field(default_factory=list)
    final_posts: int = 0
    final_acknowledged: bool = False
    taken_at: float | None = None
    finished_at: float | None = None
    stop_sent_at: float | None = None
    defects: list[str] = field(default_factory=list)

    @property
    def is_final(self) -> bool:
        """Whether the platform has closed the job."""
        return self.status in FINAL

    @property
    def outputs(self) -> list[Any]:
        """What was yielded, in order of arrival."""
        return self.outputs_after(0)

    def outputs_after(self, sent: int) -> list[Any]:
        """What was yielded beyond the first `sent` chunks."""
        return [chunk.output for chunk in self.chunks[sent:]]

    @property
    def text(self) -> str:
        """The yielded strings, joined; other values are left out."""
        return "".join(output for output in self.outputs if isinstance(output, str))

    @property
    def first_chunk_at(self) -> float | None:
        """When the first chunk arrived."""
        return self.chunks[0].at if self.chunks else None

    @property
    def is_openai(self) -> bool:
        """Whether the job came through, or looks like, the OpenAI passthrough."""
        return isinstance(self.input, Mapping) and "openai_route" in self.input

    @property
    def is_openai_stream(self) -> bool:
        """Whether the job's chunks are relayed as raw text to an OpenAI client."""
        body = self.input.get("openai_input") if self.is_openai else None
        return isinstance(body, Mapping) and bool(body.get("stream"))

    def count(self, route: PostRoute) -> int:
        """How often the worker tried to post on this route."""
        return sum(post.route == route for post in self.posts)

    def __str__(self) -> str:
        """One line for an assertion's message."""
        parts = [
            f"job {self.id}: {self.status}",
            f"{len(self.chunks)} chunks",
            f"{self.final_posts} final posts",
        ]
        return ", ".join([*parts, *self.defects])
