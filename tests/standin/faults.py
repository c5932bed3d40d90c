"""What a test can make the stand-in do wrong, settable while a worker runs."""

import asyncio
from dataclasses import dataclass
from typing import Literal

from .job import PostRoute

Route = Literal["take", "stop", "stream", "done", "ping"]


@dataclass
class Fault:
    """A wrong answer; without a status the connection is aborted.

    `delivered` means that the platform reads and keeps what was posted, and only
    its answer is lost.
    """

    route: Route
    job_id: str | None
    status: int | None
    delivered: bool
    left: float

    @property
    def answer(self) -> int | Literal["abort"]:
        """The status, or the word for its absence."""
        return "abort" if self.status is None else self.status


class Hold:
    """Posts that get no answer until `release`.

    `inside` is the number of posts waiting now, `abandoned` of those whose
    worker hung up.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._released = asyncio.Event()
        self.inside = 0
        self.abandoned = 0

    def release(self) -> None:
        """Answer what waits, and hold nothing from now on; callable from any thread."""
        self._loop.call_soon_threadsafe(self._released.set)

    async def wait(self) -> None:
        """Inside the platform's loop: stay until the release."""
        self.inside += 1
        try:
            await self._released.wait()
        except asyncio.CancelledError:
            self.abandoned += 1
            raise
        finally:
            self.inside -= 1


class Faults:
    """Faults of a platform, or of one of its jobs where `job_id` is given.

    `over_deliver` is the number of jobs that a take hands out beyond those it
    was asked for.
    """

    def __init__(self) -> None:
        self.over_deliver = 0
        self._faults: list[Fault] = []
        self._delays: dict[tuple[PostRoute, str | None], float] = {}
        self._holds: dict[tuple[PostRoute, str | None], Hold] = {}

    def reply(
        self, status: int, route: Route, *, times: float = 1, job_id: str | None = None
    ) -> None:
        """Answer `status` and read nothing; `times=math.inf` until `clear`.

        `reply(204, "take", times=math.inf)` is a platform that does not hold its
        polls, `reply(404, "stop", times=math.inf)` one without a stop channel.
        """
        self._faults.append(Fault(route, job_id, status, False, times))

    def abort(
        self,
        route: Route,
        *,
        times: float = 1,
        job_id: str | None = None,
        delivered: bool = False,
    ) -> None:
        """Break the connection instead of answering, `delivered` or not."""
        self._faults.append(Fault(route, job_id, None, delivered, times))

    def delay(self, seconds: float, route: PostRoute, *, job_id: str | None = None) -> None:
        """Answer each post only after `seconds`: the round trip to a far platform."""
        self._delays[route, job_id] = seconds

    def clear(self) -> None:
        """Work well again; what is held goes on."""
        self.over_deliver = 0
        self._faults.clear()
        self._delays.clear()
        for key in list(self._holds):
            self.release(*key)

    def hold(self, route: PostRoute, job_id: str | None, hold: Hold) -> None:
        """Give posts no answer until the hold's release."""
        self._holds[route, job_id] = hold

    def release(self, route: PostRoute, job_id: str | None) -> None:
        """End a hold, if there is one."""
        hold = self._holds.pop((route, job_id), None)
        if hold is not None:
            hold.release()

    def next(self, route: Route, job_id: str | None = None) -> Fault | None:
        """The fault for the request at hand, used up by one."""
        for fault in self._faults:
            if fault.route == route and fault.left > 0 and fault.job_id in (None, job_id):
                fault.left -= 1
                return fault
        return None

    async def pause(self, route: PostRoute, job_id: str) -> None:
        """Spend the delays and the holds that apply to a post."""
        for key in ((route, None), (route, job_id)):
            await asyncio.sleep(self._delays.get(key, 0))
            if key in self._holds:
                await self._holds[key].wait()
