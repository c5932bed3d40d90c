"""The commands: `check`, `show`, `docs`. None of them needs a GPU or loads a weight."""

import argparse
import json
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import env_schema
from env_schema import Settings
from worker import engine_args, preflight, redaction
from worker.engine_args import EnginePlan
from worker.errors import ConfigurationError

EXIT_CONFIGURATION = 2


def main(arguments: Sequence[str] | None = None, environ: Mapping[str, str] = os.environ) -> int:
    """Run one command; returns its exit code, 2 for a configuration that cannot be served."""
    parser = argparse.ArgumentParser(prog="python -m worker", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check", help="check the environment and print each value's source")
    show = commands.add_parser("show", help="print what the engine would be started with")
    show.add_argument("--json", action="store_true", help="as one JSON object")
    commands.add_parser("docs", help="regenerate what is generated")
    chosen = parser.parse_args(arguments)
    if chosen.command == "docs":
        return _docs()
    try:
        settings, plan, findings = preflight.examine(environ)
    except ConfigurationError as error:
        count = len(error.problems)
        print(error, file=sys.stderr)
        print(f"{count} problem{'s' if count != 1 else ''}; nothing was started", file=sys.stderr)
        return EXIT_CONFIGURATION
    shown = _shown(settings, plan, findings)
    if chosen.command == "show" and chosen.json:
        print(json.dumps(shown, indent=2))
    else:
        _print(shown, as_values=chosen.command == "check")
    return 0


def _shown(settings: Settings, plan: EnginePlan, findings: preflight.Findings) -> dict[str, Any]:
    """All that there is to say of an accepted environment; no secret in it."""
    arguments, worker, warnings, unchecked = redaction.clean_value(
        (
            plan.arguments,
            dict(_worker_settings(settings, plan)),
            (*settings.warnings, *plan.warnings),
            findings.unchecked,
        ),
        settings.secrets,
    )
    return {
        "engine_args": arguments,
        "speculative_config": arguments.get("speculative_config"),
        "worker": worker | {"platform": settings.on_platform},
        "sources": {**settings.sources, **plan.sources},
        "warnings": warnings,
        "not_checked": unchecked,
        "vllm_serve": shlex.join(engine_args.command_line(arguments)),
    }


def _worker_settings(settings: Settings, plan: EnginePlan) -> Iterator[tuple[str, Any]]:
    """What is set and is not the engine's argument; the command line's parts are that."""
    of_engine = {*env_schema.FIELD_OF_ARGUMENT.values(), "vllm_extra_args"} - {"hf_token"}
    for group in (settings.model, settings.serving, settings.process):
        for name, value in group:
            if name not in of_engine and value is not None:
                yield name, value
    in_config = plan.sources.get("speculative_config", "").split(", ")
    for name, value in settings.speculation:
        if name in settings.sources and settings.sources[name] not in in_config:
            yield name, value
    for name, value in settings.engine.items():  # those of a port
        if name not in plan.arguments:
            yield name, value


def _print(shown: Mapping[str, Any], *, as_values: bool) -> None:
    sources = shown["sources"]
    values = {**shown["engine_args"], **(shown["worker"] if as_values else {})}
    for name, value in values.items():
        source = sources.get(name, "default")
        _say(f"{name} = {_text(value)}  ({source})")
    for warning in shown["warnings"]:
        _say(f"warning: {warning}")
    for line in shown["not_checked"]:
        _say(f"not checked: {line}")
    _say("The configuration is good." if as_values else shown["vllm_serve"])


def _say(line: str) -> None:
    """Print a line, with escapes for what the terminal cannot show: bytes that are no text."""
    encoding = sys.stdout.encoding or "utf-8"
    print(line.encode(encoding, "backslashreplace").decode(encoding))


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _docs() -> int:
    from worker import catalog, catalog_generator, reference

    catalog.PATH.write_text(catalog_generator.generate_in_child(), encoding="utf-8")
    catalog.load.cache_clear()
    reference.PATH.write_text(reference.generate(), encoding="utf-8")
    print(f"wrote {catalog.PATH.name} and {reference.PATH.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
