"""The environment contract: every variable, its type, its default, its meaning.

Pure: an environment comes in as a mapping. A variable is the upper case of its field's
name. Engine arguments without a field here are read by the upper case of their own name,
typed from the catalogue.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    AliasChoices,
    BeforeValidator,
    Field,
    SecretStr,
    ValidationError,
    create_model,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from worker import (
    catalog,
    grammar,
    legacy,
    redaction,
    speculation_fields,
    speculation_schedule,
    unknown,
)
from worker.errors import ConfigurationError, Problem

Flag = Annotated[bool, BeforeValidator(grammar.flag)]
Number = Annotated[float, BeforeValidator(grammar.number)]
JsonObject = Annotated[dict[str, Any], BeforeValidator(grammar.json_object)]
Names = Annotated[list[str], BeforeValidator(grammar.list_of(grammar.text))]

LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]
LOG_LEVEL_SYNONYMS = {"warn": "WARNING", "fatal": "CRITICAL", "trace": "DEBUG", "notset": "DEBUG"}
AcceptanceMethod = Literal["rejection_sampler", "typical_acceptance_sampler"]


@dataclass(frozen=True)
class ZeroIsUnset:
    """Marks a number whose least legal value is one."""


Count = Annotated[int, BeforeValidator(grammar.integer), Field(ge=1), ZeroIsUnset()]


def _log_level(text: str) -> object:
    word = text.casefold()
    return LOG_LEVEL_SYNONYMS.get(word) or grammar.choice(LogLevel.__args__)(word)  # type: ignore[attr-defined]


def _choice(literal: Any) -> BeforeValidator:
    return BeforeValidator(grammar.choice(literal.__args__))


def _speculative_method(text: str) -> object:
    return grammar.choice(catalog.load().arguments["spec_method"].choices)(text)


def _also(*names: str) -> AliasChoices:
    return AliasChoices(*names)


class EnvironmentSource(EnvSettingsSource):
    """The given mapping as the only source."""

    def __init__(self, settings: type[BaseSettings], environ: Mapping[str, str]) -> None:
        self._environ = environ
        super().__init__(settings, case_sensitive=True)

    def _load_env_vars(self) -> Mapping[str, str | None]:
        return self._environ

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        value, key, _ = super().get_field_value(field, field_name)
        return value, key, False


def _zero_is_unset(part: Any) -> bool:
    """Whether a field, or a member of its union, carries the mark."""
    marks = [*getattr(part, "metadata", ()), *getattr(part, "__metadata__", ())]
    if any(isinstance(mark, ZeroIsUnset) for mark in marks):
        return True
    return any(map(_zero_is_unset, get_args(getattr(part, "annotation", part))))


class Group(BaseSettings):
    """A group of variables that belong together."""

    model_config = SettingsConfigDict(
        alias_generator=str.upper,
        case_sensitive=True,
        enable_decoding=False,  # the grammar decodes, with messages of its own
        extra="ignore",
        validate_default=False,
        frozen=True,
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        *others: PydanticBaseSettingsSource,
        **named: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        environ = init_settings.init_kwargs["environ"]  # type: ignore[attr-defined]
        return (EnvironmentSource(settings_cls, environ),)


class ModelSettings(Group):
    """Which model, which tokenizer, from where."""

    model_name: str | None = Field(
        None,
        validation_alias=_also("MODEL_NAME", "MODEL"),
        description="Hugging Face repository or folder of the model to serve.",
    )
    model_revision: str | None = Field(
        None,
        validation_alias=_also("MODEL_REVISION", "REVISION"),
        description="Branch, tag or commit of the model's repository.",
    )
    tokenizer_name: str | None = Field(
        None,
        validation_alias=_also("TOKENIZER_NAME", "TOKENIZER"),
        description="Repository or folder of the tokenizer, where it is not the model's.",
    )
    hf_token: SecretStr | None = Field(
        None, description="Hugging Face access token, for gated and private repositories."
    )
    base_path: str = Field(
        "/runpod-volume",
        description="Where the network volume is mounted; the Hugging Face cache goes there.",
    )


class SpeculationSettings(Group):
    """Speculative decoding; `worker/speculation.py` turns it into the engine's config."""

    speculative_config: JsonObject | None = Field(
        None, description="The engine's whole speculative config as JSON; the base of the rest."
    )
    speculative_method: Annotated[str, BeforeValidator(_speculative_method)] | None = Field(
        None,
        validation_alias=_also("SPECULATIVE_METHOD", "SPEC_METHOD"),
        description="Where drafted tokens come from, e.g. ngram, draft_model, eagle3, suffix.",
    )
    speculative_model: str | None = Field(
        None,
        validation_alias=_also("SPECULATIVE_MODEL", "SPEC_MODEL"),
        description="The draft model or head; [ngram] for n-gram lookup.",
    )
    num_speculative_tokens: Count | None = Field(
        None,
        validation_alias=_also("NUM_SPECULATIVE_TOKENS", "SPEC_TOKENS"),
        description="Tokens to draft per step (k).",
    )
    ngram_prompt_lookup_min: Count | None = Field(
        None, description="Shortest n-gram to look up, in tokens."
    )
    ngram_prompt_lookup_max: Count | None = Field(
        None, description="Longest n-gram to look up, in tokens."
    )
    speculative_disable_by_batch_size: Count | None = Field(
        None, description="Draft nothing in steps with more than this many requests."
    )
    speculative_tokens_per_batch_size: (
        Annotated[list[Any], BeforeValidator(speculation_schedule.parse)] | None
    ) = Field(
        None,
        description="Tokens to draft by batch size: 1-16:5,17-64:3,65-:0, or the same as JSON.",
    )
    spec_decoding_acceptance_method: Annotated[AcceptanceMethod, _choice(AcceptanceMethod)] = Field(
        "rejection_sampler", description="How drafted tokens are judged."
    )
    typical_acceptance_sampler_posterior_threshold: Number | None = Field(
        None, gt=0, le=1, description="Typical acceptance: probability that always suffices."
    )
    typical_acceptance_sampler_posterior_alpha: Number | None = Field(
        None, gt=0, description="Typical acceptance: factor on the entropy's term."
    )
    speculative_draft_tensor_parallel_size: Count | None = Field(
        None, description="GPUs to shard the draft across: 1, or as many as the target's."
    )
    speculative_max_model_len: Count | None = Field(
        None, description="Longest sequence, in tokens, that the draft is used for."
    )
    speculative_quantization: str | None = Field(
        None, description="Quantization method of the draft's weights."
    )
    speculative_model_revision: str | None = Field(
        None, description="Branch, tag or commit of the draft's repository."
    )
    speculative_enforce_eager: Flag | None = Field(
        None, description="Run the draft without CUDA graphs."
    )
    speculative_report: Flag | None = Field(
        None,
        description="Show the acceptance figures with each answer; on with speculation.",
    )


class ServingSettings(Group):
    """Names, templates, and how output is put together."""

    served_model_name: Names | None = Field(
        None,
        validation_alias=_also("OPENAI_SERVED_MODEL_NAME_OVERRIDE", "SERVED_MODEL_NAME"),
        description="Name or names under which clients ask for the model.",
    )
    custom_chat_template: str | None = Field(
        None,
        validation_alias=_also("CUSTOM_CHAT_TEMPLATE", "CHAT_TEMPLATE"),
        description="Jinja chat template: its text, or the path of a file.",
    )
    openai_response_role: str | None = Field(
        None,
        validation_alias=_also("OPENAI_RESPONSE_ROLE", "RESPONSE_ROLE"),
        description="Role that chat answers carry.",
    )
    raw_openai_output: Flag = Field(
        True, description="Stream OpenAI answers as SSE text; false streams parsed objects."
    )
    default_batch_size: Count = Field(
        50, description="Most tokens to gather before a chunk is sent."
    )
    default_min_batch_size: Count = Field(
        1, description="Tokens to gather for the first chunk after the first token."
    )
    default_batch_size_growth_factor: Annotated[Number, ZeroIsUnset()] = Field(
        3.0, ge=1, description="How fast the gathered size grows from the least to the most."
    )
    stream_flush_ms: Annotated[int, BeforeValidator(grammar.integer), Field(ge=0)] = Field(
        50, description="No token waits longer than this, in milliseconds, to be sent."
    )

    @model_validator(mode="after")
    def _batches_are_ordered(self) -> Self:
        if self.default_min_batch_size > self.default_batch_size:
            raise ValueError(
                f"DEFAULT_MIN_BATCH_SIZE={self.default_min_batch_size}: is above "
                f"DEFAULT_BATCH_SIZE={self.default_batch_size}; lower the one or raise the other"
            )
        return self


class ProcessSettings(Group):
    """The worker's own process."""

    max_concurrency: Count = Field(30, description="Jobs that this worker takes at once.")
    log_level: Annotated[LogLevel, BeforeValidator(_log_level)] | None = Field(
        None, description="Least severe log lines to print, the worker's and the engine's."
    )
    vllm_extra_args: str | None = Field(
        None,
        repr=False,  # may hold keys
        description="More engine arguments, as flags on vLLM's command line; they win.",
    )
    vllm_config_file: str | None = Field(
        None, description="YAML file of engine arguments; everything else wins over it."
    )


# Engine arguments that a field above stands for.
FIELD_OF_ARGUMENT: Mapping[str, str] = {
    "model": "model_name",
    "revision": "model_revision",
    "tokenizer": "tokenizer_name",
    "served_model_name": "served_model_name",
    "chat_template": "custom_chat_template",
    "response_role": "openai_response_role",
    "hf_token": "hf_token",
    "log_level": "log_level",
    "speculative_config": "speculative_config",
    "spec_method": "speculative_method",
    "spec_model": "speculative_model",
    "spec_tokens": "num_speculative_tokens",
}


def _with_other_fields() -> type[SpeculationSettings]:
    """The group with a field for each further key of the engine's speculative config."""
    others: dict[str, Any] = {
        f"speculative_{key.name}": (_type_of(key), Field(None, description=key.summary))
        for key in speculation_fields.OTHERS
    }
    return create_model("SpeculationSettings", __base__=SpeculationSettings, **others)


def _type_of(argument: catalog.Argument) -> Any:
    parsed = Annotated[Any, BeforeValidator(argument.parse)]
    return Annotated[parsed, ZeroIsUnset()] if argument.zero_means_unset() else parsed


GROUPS: tuple[type[Group], ...] = (
    ModelSettings,
    _with_other_fields(),
    ServingSettings,
    ProcessSettings,
)


@cache
def engine_group() -> type[Group]:
    """The engine's other arguments as a group, one optional field each."""
    fields: dict[str, Any] = {
        argument.name: (_type_of(argument), Field(None, description=argument.summary))
        for argument in catalog.load().arguments.values()
        if argument.name not in FIELD_OF_ARGUMENT
    }
    return create_model("EngineSettings", __base__=Group, **fields)


@dataclass(frozen=True)
class Settings:
    """An environment that was understood.

    `engine` maps the names of engine arguments to values, only those that were set.
    `sources` maps a field's or argument's name to the variable that set it.
    """

    model: ModelSettings
    speculation: SpeculationSettings
    serving: ServingSettings
    process: ProcessSettings
    engine: Mapping[str, grammar.Value] = field(repr=False)  # may hold keys
    sources: Mapping[str, str]
    warnings: tuple[str, ...] = ()
    on_platform: bool = False
    secrets: tuple[str, ...] = field(default=(), repr=False)


def load(environ: Mapping[str, str]) -> Settings:
    """The settings that an environment asks for.

    Raises `ConfigurationError` with every problem found. Values that only the models'
    own files or the engine could judge are not judged here.
    """
    settings, problems = attempt(environ)
    if problems:
        raise ConfigurationError(problems)
    return settings


def attempt(environ: Mapping[str, str]) -> tuple[Settings, list[Problem]]:
    """As `load`, with the problems beside the settings of what can be understood."""
    translated, warnings, problems = legacy.translate(environ)
    given = dict(_given({**environ, **translated}))
    secrets = redaction.secrets_of(environ)
    problems = [*problems, *_alias_conflicts(given, secrets)]
    groups = [_load_group(group, given, secrets, problems) for group in (*GROUPS, engine_group())]
    model, speculation, serving, process, engine = groups
    settings = Settings(
        model=model,  # type: ignore[arg-type]  # in the order of GROUPS
        speculation=speculation,  # type: ignore[arg-type]
        serving=serving,  # type: ignore[arg-type]
        process=process,  # type: ignore[arg-type]
        engine={name: value for name, value in engine if value is not None},
        sources=dict(_sources(given, groups)),
        warnings=(*warnings, *unknown.warnings(given, known_variables())),
        on_platform=not grammar.is_unset(environ.get("RUNPOD_WEBHOOK_GET_JOB", "")),
        secrets=secrets,
    )
    return settings, problems


def _given(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The variables that are set, trimmed; a form's 0 sets nothing where 1 is the least."""
    counts = count_variables()
    for name, text in environ.items():
        if not (grammar.is_unset(text) or (name in counts and grammar.is_zero(text))):
            yield name, text.strip()


@cache
def count_variables() -> frozenset[str]:
    """Every variable whose 0 means "not given"."""
    return frozenset(
        name
        for group in (*GROUPS, engine_group())
        for field_name, names in variables(group)
        for name in names
        if _zero_is_unset(group.model_fields[field_name])
    )


@cache
def known_variables() -> frozenset[str]:
    """Every variable that has a meaning here."""
    groups = (*GROUPS, engine_group())
    return frozenset(name for group in groups for _, names in variables(group) for name in names)


def variables(group: type[Group]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each field of a group with its variables, the preferred one first."""
    for name, info in group.model_fields.items():
        alias = info.validation_alias
        if isinstance(alias, AliasChoices):
            yield name, tuple(str(choice) for choice in alias.choices)
        else:
            yield name, (name.upper(),)


def _sources(given: Mapping[str, str], groups: list[Group]) -> Iterator[tuple[str, str]]:
    """The variable that set each field."""
    for group in groups:
        for name, names in variables(type(group)):
            set_by = next((variable for variable in names if variable in given), None)
            if set_by and name in group.model_fields_set:
                yield name, set_by


def _alias_conflicts(given: Mapping[str, str], secrets: tuple[str, ...]) -> Iterator[Problem]:
    for group in GROUPS:
        for name, names in variables(group):
            first, *others = [variable for variable in names if variable in given] or [""]
            for other in others:
                if _read(group, name, other, given) != _read(group, name, first, given):
                    yield Problem(
                        other,
                        redaction.shown(other, given[other], secrets),
                        f"is another name for {first}, which has another value",
                        "Set only one of the two",
                    )


def _read(group: type[Group], name: str, variable: str, given: Mapping[str, str]) -> object:
    """What one variable alone makes of a field; its text where it cannot be read."""
    try:
        alone = group(environ={variable: given[variable]})  # type: ignore[call-arg]  # as below
    except ValidationError:
        return given[variable]
    return getattr(alone, name)


def _load_group(
    group: type[Group], given: Mapping[str, str], secrets: tuple[str, ...], problems: list[Problem]
) -> Group:
    """The group without the variables that have a problem; each of them is told."""
    while True:
        try:
            return group(environ=given)  # type: ignore[call-arg]  # for the source above
        except ValidationError as error:
            found = [_problem(group, detail, given, secrets) for detail in error.errors()]
            problems.extend(found)
            bad = {problem.variable for problem in found}
            given = {name: text for name, text in given.items() if name not in bad}


def _problem(
    group: type[Group], detail: Any, given: Mapping[str, str], secrets: tuple[str, ...]
) -> Problem:
    bound = _BOUNDS.get(detail["type"], "{msg}").format(**detail.get("ctx", {}), **detail)
    why = bound.removeprefix("Value error, ")
    if not detail["loc"]:  # a rule over several fields names them itself
        variable, _, why = why.partition("=")
        value, _, why = why.partition(": ")
        return Problem(variable, value, why)
    aliases = next(names for _, names in variables(group) if detail["loc"][0] in names)
    variable = next(name for name in aliases if name in given)
    if redaction.clean(given[variable], secrets) != given[variable]:
        why = why.partition(", near ")[0]  # a part of a secret cannot be told from other text
    why, _, fix = redaction.clean(why, secrets).partition("; ")
    fix = fix[:1].upper() + fix[1:] or _fix_of_bound(why)
    return Problem(variable, redaction.shown(variable, given[variable], secrets), _clause(why), fix)


# What pydantic finds of a bound, in the words of the catalogue.
_BOUNDS = {
    "greater_than_equal": "is below the least legal value, {ge:g}",
    "greater_than": "must be above {gt:g}",
    "less_than_equal": "is above the greatest legal value, {le:g}",
    "less_than": "must be below {lt:g}",
}
_FIXES = (
    (re.compile(r"is below the least legal value, (\S+)"), r"Set it to \1 or more, or unset it"),
    (re.compile(r"is above the greatest legal value, (\S+)"), r"Set it to \1 or less, or unset it"),
    (re.compile(r"must be (above|below) (\S+)"), r"Set it \1 \2, or unset it"),
)


def _fix_of_bound(why: str) -> str:
    found = (match.expand(fix) for bound, fix in _FIXES if (match := bound.fullmatch(why)))
    return next(found, "")


def _clause(message: str) -> str:
    return message[:1].lower() + message[1:] if message.startswith("Input ") else message
