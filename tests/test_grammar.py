"""One grammar for every variable."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker import grammar

KB = 1000
KIB = 1024


@pytest.mark.parametrize(
    "text", ["", " ", "\t\n", "\u00a0", "None", "none", "NONE", " nOnE ", "null", "Null", "NULL"]
)
def test_blank_none_and_null_mean_not_given(text: str) -> None:
    assert grammar.is_unset(text)


@pytest.mark.parametrize(
    "text", ["0", "false", "no", "none.", "nil", "undefined", "''", "[]", "nul"]
)
def test_every_other_word_is_given(text: str) -> None:
    assert not grammar.is_unset(text)


@pytest.mark.parametrize("text", ["0", "00", "0.0", "+0", "-0", "0.", " 0 ", "0e0", "-0.0"])
def test_zero_is_zero_in_each_of_its_spellings(text: str) -> None:
    assert grammar.is_zero(text)


@pytest.mark.parametrize("text", ["1", "0.1", "o", "", "false", "0x1", "0,0", "00:00"])
def test_other_texts_are_not_zero(text: str) -> None:
    assert not grammar.is_zero(text)


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("1 true True TRUE t yes Yes y on ON enable enabled", True),
        ("0 false False FALSE f no NO n off Off disable disabled", False),
    ],
)
def test_booleans_have_one_grammar(words: str, value: bool) -> None:
    assert {grammar.flag(word) for word in words.split()} == {value}


@pytest.mark.parametrize("text", ["2", "1.0", "-1", "truth", "", "yes please", "True,"])
def test_what_is_no_boolean_is_told_the_words(text: str) -> None:
    with pytest.raises(ValueError, match="write true or false"):
        grammar.flag(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [("8", 8), ("-1", -1), ("+3", 3), ("4.0", 4), ("1_000", 1000), ("1e3", 1000), (" 7 ", 7)],
)
def test_a_whole_number_may_be_written_as_a_decimal(text: str, value: int) -> None:
    assert grammar.integer(text) == value


@pytest.mark.parametrize(
    "text", ["", "4.5", "four", "1,000", "0x10", "inf", "nan", "1e400", "9" * 5000, "1k", "--1"]
)
def test_what_is_no_whole_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a whole number"):
        grammar.integer(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("16k", 16 * KB),
        ("16K", 16 * KIB),
        ("25.6k", 25_600),
        ("1m", KB**2),
        ("1M", KIB**2),
        ("2g", 2 * KB**3),
        ("2G", 2 * KIB**3),
        ("1T", KIB**4),
        ("512", 512),
        (" 5k ", 5 * KB),
    ],
)
def test_a_small_suffix_counts_in_thousands_and_a_capital_one_in_1024s(
    text: str, value: int
) -> None:
    assert grammar.human_integer(text) == value


@pytest.mark.parametrize("text", ["k", "1kk", "1 k", "-1k", "1p", "9" * 400 + "k", "1e3k"])
def test_a_number_with_a_wrong_suffix_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a whole number"):
        grammar.human_integer(text)


def test_decimals_before_a_binary_suffix_are_told_the_decimal_one() -> None:
    with pytest.raises(ValueError, match=r"write 25\.6k"):
        grammar.human_integer("25.6K")


@pytest.mark.parametrize(("text", "value"), [("auto", -1), ("AUTO", -1), ("-1", -1), ("4k", 4000)])
def test_auto_is_the_engines_word_for_what_fits(text: str, value: int) -> None:
    assert grammar.human_integer_or_auto(text) == value


@pytest.mark.parametrize(
    ("text", "value"), [("0.9", 0.9), ("1", 1.0), ("-.5", -0.5), ("1e-3", 1e-3)]
)
def test_numbers_are_read(text: str, value: float) -> None:
    assert grammar.number(text) == value


@pytest.mark.parametrize("text", ["", "0,9", "90%", "nan", "inf", "-Infinity", "1e999"])
def test_what_is_no_finite_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="number"):
        grammar.number(text)


DTYPES = ("auto", "bfloat16", "float16", "float32")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("BFLOAT16", "bfloat16"),
        ("bf16", "bfloat16"),
        ("BF16", "bfloat16"),
        ("fp16", "float16"),
        ("Auto", "auto"),
    ],
)
def test_choices_are_blind_to_case_and_know_the_short_forms(text: str, value: str) -> None:
    assert grammar.choice(DTYPES)(text) == value


@pytest.mark.parametrize("text", ["N-Gram", "[ngram]", "NGRAM", "ngram"])
def test_ngram_has_its_historic_spellings(text: str) -> None:
    assert grammar.choice(("ngram", "eagle"))(text) == "ngram"


def test_a_choice_of_numbers_gives_the_number() -> None:
    assert grammar.choice((8, 16))("16") == 16


def test_a_choice_that_is_not_there_is_told_the_nearest_and_the_others() -> None:
    with pytest.raises(ValueError, match=r"did you mean bfloat16\? accepted: auto, bfloat16"):
        grammar.choice(DTYPES)("bfloat61")


def test_a_long_list_of_choices_is_cut() -> None:
    with pytest.raises(ValueError, match="accepted: ") as refused:
        grammar.choice([f"choice-{n}" for n in range(40)])("x")
    assert len(str(refused.value)) < 220


JSON_TEXTS: list[tuple[str, Any]] = [
    ('{"a": 1}', {"a": 1}),
    ('[1, "x", null, true, 0.5]', [1, "x", None, True, 0.5]),
    ("'{\"a\": 1}'", {"a": 1}),
    ('"{"a": 1}"', {"a": 1}),
    (r'"{\"a\": \"b\"}"', {"a": "b"}),
    (r"'{\"a\": 1}'", {"a": 1}),
    ('\'{"a": "say \\"hi\\""}\'', {"a": 'say "hi"'}),
    ("' {\"a\": 1} '", {"a": 1}),
    ("{'a': True, 'b': None, 'c': (1, 2)}", {"a": True, "b": None, "c": [1, 2]}),
    ("{'a': 'it''s'}", {"a": "its"}),
    (r"{'pattern': '\d'}", {"pattern": r"\d"}),
    ('{"a": "\\u00e9 é 漢"}', {"a": "é é 漢"}),
    ("{1: 2}", {"1": 2}),
    ('{"a":\n  1}', {"a": 1}),
    ("7", 7),
]


@pytest.mark.parametrize(("text", "value"), JSON_TEXTS)
def test_json_is_read_through_quotes_and_as_a_python_literal(text: str, value: Any) -> None:
    assert grammar.json_value(text) == value


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"a": 1,, "b": 2}', "at character 9, line 1, near"),
        ('{"a": 1\n "b": 2}', "at character 10, line 2"),
        ("{a: 1}", "at character 2"),
        ('{"a": 1', "is not valid JSON"),
        ("", "is not valid JSON"),
        ("{'a': 1j}", "is not valid JSON"),
        ("{'a': b'x'}", "is not valid JSON"),
        ("__import__('os').getcwd()", "is not valid JSON"),
        ('{"a": NaN}', "holds NaN"),
        ('{"a": -Infinity}', "holds -Infinity"),
        ('{"a": 1e999}', "not finite"),
        ('{"a": ' + "9" * 5000 + "}", "a number of 5000 digits"),
        ('{"a":' * 5000 + "1" + "}" * 5000, "nested too deeply"),
        ("[" * 100_000, "nested too deeply"),
        ("(" * 100_000, "is not valid JSON"),
    ],
)
def test_what_is_no_json_is_told_where(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as refused:
        grammar.json_value(text)
    assert len(str(refused.value)) < 200


def test_the_place_of_a_fault_is_not_quoted_where_a_secret_may_be() -> None:
    with pytest.raises(ValueError, match="is not valid JSON") as refused:
        grammar.json_value('{"api_key": hunter2hunter2}')
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("parse", "text"), [(grammar.json_object, "[1]"), (grammar.json_list, "{}")]
)
def test_json_of_another_shape_is_refused(parse: Any, text: str) -> None:
    with pytest.raises(ValueError, match="is not a JSON"):
        parse(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [('{"a": 1}', {"a": 1}), ("'{\"a\": 1}'", {"a": 1}), ("cpu", "cpu"), ("cuda:{0}", "cuda:{0}")],
)
def test_a_text_that_opens_like_an_object_is_one(text: str, value: Any) -> None:
    assert grammar.json_or_text(text) == value


@pytest.mark.parametrize(
    "text",
    ["a,b", "a, b", "a b", "a\nb", ",a,,b,", '["a", "b"]', "['a', 'b']", '\'["a", "b"]\''],
)
def test_a_list_is_json_or_items_between_commas_and_blanks(text: str) -> None:
    assert grammar.list_of(grammar.text)(text) == ["a", "b"]


def test_an_item_of_a_json_list_may_hold_a_comma_or_a_blank() -> None:
    assert grammar.list_of(grammar.text)('["a, b", "c d"]') == ["a, b", "c d"]


@pytest.mark.parametrize("text", ["1,2", "[1, 2]", '["1", "2.0"]', "1 2"])
def test_a_list_of_numbers_gives_numbers(text: str) -> None:
    assert grammar.list_of(grammar.integer)(text) == [1, 2]


@pytest.mark.parametrize("text", ["[]", ",", " , ,", '[""]'])
def test_a_list_of_nothing_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a list of nothing"):
        grammar.list_of(grammar.text)(text)


@pytest.mark.parametrize("text", ['["a", null]', '[{"a": 1}]', '[["a"]]', "[true]"])
def test_a_list_holds_no_other_structures(text: str) -> None:
    with pytest.raises(ValueError, match="is not a list's item"):
        grammar.list_of(grammar.text)(text)


ADAPTER = {"name": "sql", "path": "/adapters/sql"}
OTHER = {"name": "law", "path": "org/law"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("sql=/adapters/sql", [ADAPTER]),
        ("sql=/adapters/sql law=org/law", [ADAPTER, OTHER]),
        ("sql=/adapters/sql,law=org/law", [ADAPTER, OTHER]),
        (json.dumps(ADAPTER), [ADAPTER]),
        (json.dumps([ADAPTER, OTHER]), [ADAPTER, OTHER]),
        ('["sql=/adapters/sql"]', [ADAPTER]),
        ('{"sql": "/adapters/sql", "law": "org/law"}', [ADAPTER, OTHER]),
        ("x=/a=b", [{"name": "x", "path": "/a=b"}]),
        (json.dumps([{**ADAPTER, "base_model_name": "b"}]), [{**ADAPTER, "base_model_name": "b"}]),
    ],
)
def test_adapters_are_read_in_each_form(text: str, value: Any) -> None:
    assert grammar.lora_modules(text) == value


@pytest.mark.parametrize(
    "text",
    ["sql", "=x", "sql=", '[{"name": "sql"}]', '{"sql": null}', '{"sql": {"path": "/x"}}', "[1]",
     '[{"name": "a", "path": "/a", "rank": 8}]', "[]", ",", '[{"name": 3, "path": "/a"}]'],
)  # fmt: skip
def test_what_is_no_adapter_is_refused_here_and_not_at_boot(text: str) -> None:
    with pytest.raises(ValueError, match="adapter"):
        grammar.lora_modules(text)


PARSERS = [
    *(grammar.flag, grammar.integer, grammar.human_integer, grammar.human_integer_or_auto),
    *(grammar.number, grammar.json_value, grammar.json_object, grammar.json_list),
    *(grammar.json_or_text, grammar.lora_modules, grammar.list_of(grammar.text)),
    *(grammar.list_of(grammar.integer), grammar.choice(DTYPES)),
]
ODD_TEXT = st.text(
    st.characters() | st.sampled_from("{}[]\"'\\,:=-0123456789eEkK.tfn "), max_size=60
)


@settings(max_examples=60, deadline=None, database=None)
@given(ODD_TEXT)
def test_any_text_gives_a_json_value_or_a_value_error(text: str) -> None:
    for parse in PARSERS:
        outcome = _value_or_refusal(parse, text)
        if isinstance(outcome, ValueError):
            assert str(outcome).splitlines() == [str(outcome)]
        else:
            assert json.loads(json.dumps(outcome, allow_nan=False)) == outcome


def _value_or_refusal(parse: Callable[[str], Any], text: str) -> Any:
    try:
        return parse(text)
    except ValueError as refusal:
        return refusal


@settings(max_examples=60, deadline=None, database=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=20),
        lambda part: (
            st.lists(part, max_size=4) | st.dictionaries(st.text(max_size=8), part, max_size=4)
        ),
        max_leaves=12,
    )
)
def test_every_json_value_comes_back_however_it_is_quoted(value: Any) -> None:
    text = json.dumps({"value": value})
    for form in (text, f"'{text}'", f'"{text}"', json.dumps(text), f"  {text}  "):
        assert grammar.json_value(form) == {"value": value}
