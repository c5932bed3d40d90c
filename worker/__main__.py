"""The commands: `check`, `show`, `docs`. None of them needs a GPU or loads a weight."""

import argparse
import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
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
        settings = env_schema.load(environ)
        plan = engine_args.plan(settings)
        findings = preflight.inspect(plan, environ)
        if findings.problems:
            raise ConfigurationError(findings.problems)
    except ConfigurationError as error:
        print(redaction.clean(str(error), redaction.secrets_of(environ)), file=sys.stderr)
        count = len(error.problems)
        print(f"{count} problem{'s' if count != 1 else ''}; nothing was started", file=sys.stderr)
        return EXIT_CONFIGURATION
    shown = _shown(settings, plan, findings)
    if chosen.command == "show" and chosen.json:
        print(json.dumps(shown, indent=2, ensure_ascii=False))
    else:
        _print(shown, as_values=chosen.command == "check")
    return 0


def _shown(settings: Settings, plan: EnginePlan, findings: preflight.Findings) -> dict[str, Any]:
    """All that there is to say of an accepted environment; no secret in it."""
    shown = {
        "engine_args": {name: _safe(name, value) for name, value in plan.arguments.items()},
        "speculative_config": plan.speculative_config,
        "worker": {
            name: _safe(name, value)
            for group in (settings.model, settings.serving, settings.process)
            for name, value in group
            if name not in env_schema.FIELD_OF_ARGUMENT.values() and value is not None
        }
        | {"platform": settings.on_platform},
        "sources": {**settings.sources, **plan.sources},
        "warnings": [*settings.warnings, *plan.warnings],
        "not_checked": findings.unchecked,
        "vllm_serve": shlex.join(engine_args.command_line(plan.arguments)),
    }
    cleaned: dict[str, Any] = json.loads(
        redaction.clean(json.dumps(shown, ensure_ascii=False), settings.secrets)
    )
    return cleaned


def _safe(name: str, value: Any) -> Any:
    return redaction.MASK if redaction.is_secret(name) else value


def _print(shown: Mapping[str, Any], *, as_values: bool) -> None:
    sources = shown["sources"]
    values = {**shown["engine_args"], **(shown["worker"] if as_values else {})}
    for name, value in values.items():
        source = sources.get(name, "default")
        print(f"{name} = {_text(value)}  ({source})")
    for warning in shown["warnings"]:
        print(f"warning: {warning}")
    for line in shown["not_checked"]:
        print(f"not checked: {line}")
    if not as_values:
        print(shown["vllm_serve"])
    else:
        print("The configuration is good.")


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
