"""The generated reference says what the schema says."""

import env_schema
from worker import catalog, reference


def test_the_reference_is_what_the_schema_generates() -> None:
    assert reference.PATH.read_text(encoding="utf-8") == reference.generate(), (
        "run `python -m worker docs`"
    )


def test_every_variable_is_in_it() -> None:
    text = reference.generate()
    missing = [name for name in env_schema.known_variables() if f"`{name}`" not in text]
    assert missing == []


def test_every_own_variable_has_a_meaning() -> None:
    for group in env_schema.GROUPS:
        assert [n for n, f in group.model_fields.items() if not f.description] == []


def test_every_engine_argument_has_a_meaning() -> None:
    assert [a.name for a in catalog.load().arguments.values() if not a.summary] == []
