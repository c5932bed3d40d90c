"""A stand-in for the Runpod Serverless platform on 127.0.0.1, and a runner for worker processes.

The specification is section 10 of the project's notes on SDK 1.10.0: the routes
a worker calls, the routes a client calls, and faults that a test injects.
"""

from .faults import Faults, Hold
from .job import FINAL, Chunk, Job, Ping, Post, Status
from .platform import Platform
from .worker_process import WorkerProcess

__all__ = [
    "FINAL",
    "Chunk",
    "Faults",
    "Hold",
    "Job",
    "Ping",
    "Platform",
    "Post",
    "Status",
    "WorkerProcess",
]
