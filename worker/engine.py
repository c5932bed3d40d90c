"""The engine in this process: boot, generate, abort, death, shutdown.

Knows no job and reads no environment. The engine's core runs in a child process; this
side holds its client, which binds to whichever event loop uses it first.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any

from worker.boot_log import BootLog
from worker.engine_args import EnginePlan
from worker.engine_errors import one_sentence
from worker.errors import EngineBootError, EngineGone
from worker.overlap import once_forked

if TYPE_CHECKING:
    from argparse import Namespace

    from vllm import SamplingParams
    from vllm.outputs import RequestOutput
    from vllm.v1.engine.async_llm import AsyncLLM

LONGEST_SHUTDOWN_S = 15.0  # a forked engine takes 2 s, a spawned one 8 s, here


class Engine:
    """A running engine. One for the life of the process.

    `spoken` is the Namespace that it was started with, `model` the model as the user
    named it.
    """

    def __init__(self, client: "AsyncLLM", spoken: "Namespace", model: str, log: BootLog) -> None:
        self.client = client
        self.spoken = spoken
        self.model = model
        self._log = log
        self._stopped = False
        self._aborting: set[asyncio.Task[None]] = set()

    @classmethod
    def boot(
        cls,
        plan: EnginePlan,
        model: str,
        log: BootLog,
        meanwhile: Callable[[], None],
        say: Callable[[str], None],
    ) -> "Engine":
        """Start the engine of a plan with the model at `model`. Blocks until it is ready.

        `meanwhile` is run in a thread while the engine's core loads; `say` gets a line for
        each stage. Raises
        `EngineBootError` with the root cause in one sentence. Call it from the main
        thread, before any event loop and before anything that starts threads.
        """
        with log.listening():
            try:
                say("importing vLLM")
                from worker import launch

                spoken = launch.namespace({**plan.arguments, "model": model})
                config = launch.engine_config(spoken)
                say("loading the model")
                # with several cores there are several forks, and a thread may not run yet
                alone = config.parallel_config.data_parallel_size == 1
                with once_forked(meanwhile) if alone else nullcontext():
                    client = launch.start(spoken, config)
            except Exception as error:  # whatever it is, the user gets its cause
                of_child = _is_of_a_child(error)
                cause = log.cause() if of_child else None
                raise EngineBootError(cause or one_sentence(error), of_child=of_child) from error
        return cls(client, spoken, str(plan.arguments["model"]), log)

    @property
    def model_name(self) -> str:
        """The first name under which clients ask for the model."""
        names = self.spoken.served_model_name
        return str(names[0] if names else self.model)

    @property
    def is_dead(self) -> bool:
        """Whether the engine has ended, or was shut down."""
        return self._stopped or self.client.errored

    async def render_text(self, prompt: str) -> Any:
        """The engine's input for a plain prompt."""
        (rendered,) = await self.client.renderer.render_cmpl_async([{"prompt": prompt}])
        return rendered

    async def render_chat(
        self, messages: Sequence[Mapping[str, Any]], template_arguments: Mapping[str, Any]
    ) -> Any:
        """The engine's input for a conversation, through the model's chat template."""
        from vllm.renderers.chat_utils import load_chat_template
        from vllm.renderers.params import ChatParams

        parameters = ChatParams(
            chat_template=load_chat_template(self.spoken.chat_template),
            chat_template_content_format=self.spoken.chat_template_content_format,
            chat_template_kwargs={
                "add_generation_prompt": True,
                "continue_final_message": False,
                **(self.spoken.default_chat_template_kwargs or {}),
                **template_arguments,
            },
        )
        conversation: Any = list(messages)
        _, (rendered,) = await self.client.renderer.render_chat_async([conversation], parameters)
        return rendered

    def generate(
        self, rendered: Any, sampling: "SamplingParams", request_id: str
    ) -> AsyncGenerator["RequestOutput", None]:
        """The engine's outputs for one request, as they come; closing it aborts the request."""
        outputs: AsyncGenerator[RequestOutput, None] = self.client.generate(
            rendered, sampling, request_id
        )
        return outputs

    def abort_soon(self, request_id: str) -> None:
        """Stop a request, if it still runs; does not wait."""
        if not self.is_dead:
            task = asyncio.get_running_loop().create_task(self.client.abort(request_id))
            self._aborting.add(task)
            task.add_done_callback(self._aborting.discard)

    @cached_property
    def sampling_defaults(self) -> Mapping[str, Any]:
        """The sampling values that the model's own generation config recommends."""
        defaults: Mapping[str, Any] = self.client.model_config.get_diff_sampling_param()
        return defaults

    async def wait_for_death(self, poll_s: float = 0.5) -> EngineGone:
        """Return when the engine has died on its own, with what is known of it."""
        while not self.client.errored:
            await asyncio.sleep(poll_s)
        return EngineGone("the engine process has ended; the worker stops and is replaced")

    def shutdown(self) -> None:
        """Stop the engine and its children. Blocks, bounded; may be called again."""
        if not self._stopped:
            self._stopped = True
            self.client.shutdown(timeout=LONGEST_SHUTDOWN_S)
            self._log.finish()


def _is_of_a_child(error: Exception) -> bool:
    return isinstance(error, RuntimeError) and "Engine core initialization failed" in str(error)
