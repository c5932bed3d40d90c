"""The container's entry point: check the environment, start the engine, take jobs.

    python handler.py                                  serve the endpoint
    python handler.py --test_input '{"input": {…}}'    run one job here and print it
    python handler.py --test_input file.json           the same, from a file

Without a platform around it (no job-take URL) the worker runs `test_input.json` of the
working directory.
"""

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from env_schema import Settings
    from worker.engine_args import EnginePlan


def main() -> int:
    """Run the worker; returns its exit code: 2 for a configuration that cannot be served."""
    from worker import process_setup

    process_setup.restart_for_openmp(os.environ)
    from worker import local_run, preflight, start
    from worker.errors import ConfigurationError, EngineBootError, WorkerError

    try:
        settings, plan, _ = preflight.examine(os.environ)
        start.configure_logging(settings)
        job_input = local_run.requested(sys.argv[1:], settings.on_platform)
        if job_input is not None:
            return local_run.run(settings, plan, job_input)
        return _serve(settings, plan)
    except ConfigurationError as error:
        print(f"The configuration cannot be served:\n{error}", file=sys.stderr)
        return 2
    except EngineBootError as error:
        print(f"The engine did not start: {_clean(error)}", file=sys.stderr)
        return 1 if error.of_child else 2
    except WorkerError as error:
        print(_clean(error), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _clean(error: Exception) -> str:
    from worker import redaction

    return redaction.clean(str(error), redaction.secrets_of(os.environ))


def _serve(settings: "Settings", plan: "EnginePlan") -> int:
    from worker import engine_args, models, process_setup, start
    from worker.jobs import Jobs

    plan = models.with_absolute_paths(plan)
    with process_setup.private_directory():
        engine = start.boot(settings, plan, start.log.info)
        from worker import runpod_loop

        report = engine_args.reports_acceptance(settings, plan)
        jobs = Jobs(engine, settings.serving, report=report)
        return runpod_loop.serve(engine, jobs, settings.process.max_concurrency)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads that libraries left must not hold the exit up
