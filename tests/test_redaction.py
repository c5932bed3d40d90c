"""Secrets stay out of everything that is printed."""

import json

import pytest

from worker import redaction

LOOK = "hf_abcdefghijklmnop"
KEY = "sk-4711-not-a-look-of-its-own"


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "hf_token", "HUGGING_FACE_HUB_TOKEN", "API_KEY", "api_key", "RUNPOD_AI_API_KEY",
     "OPENAI_APIKEY", "VLLM_API_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID",
     "AWS_SESSION_TOKEN", "DB_PASSWORD", "PASSWORD", "GOOGLE_CREDENTIALS", "SECRET_SAUCE",
     "api-key", "x-api-key", "apiKey", "client-secret", "clientSecret", "secretAccessKey",
     "accessKey", "Authorization", "Proxy-Authorization", "auth", "private_key", "privateKey",
     "passphrase", "pwd", "db_pwd", "DB_PASS", "connection_string", "connectionString"],
)  # fmt: skip
def test_a_name_tells_that_its_value_is_secret(name: str) -> None:
    assert redaction.is_secret(name)
    assert redaction.shown(name, KEY) == redaction.MASK


@pytest.mark.parametrize(
    "name",
    ["MODEL_NAME", "TOKENIZER_NAME", "TOKENIZER", "NUM_SPECULATIVE_TOKENS", "ALLOW_CREDENTIALS",
     "MAX_NUM_BATCHED_TOKENS", "RETURN_TOKENS_AS_TOKEN_IDS", "SSL_KEYFILE", "spec_tokens", "PWD",
     "OLDPWD", "SSH_AUTH_SOCK", "author", "pass_config", "bypass", "key"],
)  # fmt: skip
def test_other_names_are_not_secret(name: str) -> None:
    assert not redaction.is_secret(name)
    assert redaction.shown(name, "value") == "value"


def test_no_argument_of_the_engine_is_taken_for_a_secret_by_mistake() -> None:
    from worker import catalog

    secret = {name for name in catalog.load().arguments if redaction.is_secret(name)}
    assert secret == {"hf_token", "api_key"}


def test_the_secrets_of_an_environment_are_known_by_name_the_longest_first() -> None:
    environ = {"HF_TOKEN": "short-one", "API_KEY": " the-longer-one ", "MODEL_NAME": "org/model"}
    assert redaction.secrets_of(environ) == ("the-longer-one", "short-one")


def test_a_very_short_secret_does_not_wipe_out_ordinary_text() -> None:
    assert redaction.secrets_of({"HF_TOKEN": "a", "API_KEY": ""}) == ()


def test_a_secret_within_another_leaves_nothing_of_either() -> None:
    secrets = redaction.secrets_of({"HF_TOKEN": "inner-key", "API_KEY": "outer-inner-key-outer"})
    assert redaction.clean("x outer-inner-key-outer y", secrets) == f"x {redaction.MASK} y"


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        (f"401 for {LOOK}", LOOK),
        (f'{{"token": "{LOOK}"}}', LOOK),
        ("https://user:pa55word@host/path", "pa55word"),
        ("http://proxy-user:s3cret@10.0.0.1:3128", "s3cret"),
        ("Authorization: Bearer abcdefgh12345678", "abcdefgh12345678"),
    ],
)
def test_what_looks_like_a_secret_is_masked_without_being_known(text: str, hidden: str) -> None:
    cleaned = redaction.clean(text)
    assert hidden not in cleaned
    assert redaction.MASK in cleaned


@pytest.mark.parametrize(
    "text", ["org/hf_model", "http://host:8000/path", "a:b@c", "Bearer of news", "hf_short"]
)
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert redaction.clean(text) == text


@pytest.mark.parametrize(
    "text",
    [
        f'{{"api_key": "{KEY}"}}',
        f"{{'aws_secret_access_key': '{KEY}'}}",
        f"password={KEY}",
        f"api-key: {KEY}, model: m",
        f'{{"auth_token":{KEY}}}',
        f'{{"x-api-key": "{KEY}"}}',
        f'{{"secretAccessKey": "{KEY}"}}',
        f'{{"passphrase": "words before {KEY}"}}',
        f'{{"passphrase": "words before {KEY}", cut off',
        f'{{"headers": {{"Authorization": "Basic {KEY}"}}}}',
        f"Authorization: Token {KEY}",
        f'{{"auth": {{"user": "me", "pass": "{KEY}"}}}}',
        f'{{"connectionString": "Server=a;Key={KEY}"}}',
    ],
)
def test_a_secret_named_inside_a_shown_value_is_masked(text: str) -> None:
    assert redaction.holds_secret(text)
    assert KEY not in redaction.shown("KV_TRANSFER_CONFIG", text)


def test_an_authorization_header_is_masked_in_any_text_and_scheme() -> None:
    for text in (f"Authorization: Basic {KEY} was sent", f"['authorization: {KEY}']"):
        assert KEY not in redaction.clean(text)
        assert KEY not in str(redaction.clean_value({"headers": [text]}))


def test_names_inside_a_structure_are_read_in_any_spelling() -> None:
    names = ("api-key", "secretAccessKey", "Authorization", "auth", "pwd", "private_key")
    cleaned = redaction.clean_value({"inner": dict.fromkeys(names, KEY)})
    assert cleaned == {"inner": dict.fromkeys(names, redaction.MASK)}
    assert KEY not in redaction.shown("KV_TRANSFER_CONFIG", {"inner": dict.fromkeys(names, KEY)})


def test_a_value_that_holds_itself_or_is_very_deep_is_no_trouble() -> None:
    ring: list[object] = [{"password": KEY}]
    ring.append(ring)
    assert KEY not in redaction.shown("HF_OVERRIDES", ring)
    assert redaction.shown("HF_OVERRIDES", "[" * 5000).startswith("[[[")
    assert redaction.shown("HF_OVERRIDES", "[" * 900 + "]" * 900).startswith("[[[")


def test_the_working_folder_is_no_secret() -> None:
    assert redaction.secrets_of({"PWD": "/srv/folder", "OLDPWD": "/srv/folder"}) == ()


def test_shown_values_keep_to_one_short_line() -> None:
    shown = redaction.shown("CUSTOM_CHAT_TEMPLATE", "a\nb\rc\u2028d\x1b[31me\x85f" + "x" * 500)
    assert shown.startswith(r"a\nb\rc\u2028d\x1b[31me\x85f")
    assert len(shown) == redaction.LONGEST_SHOWN
    assert shown.splitlines() == [shown]


def test_a_known_secret_is_masked_before_a_value_is_cut() -> None:
    text = "x" * (redaction.LONGEST_SHOWN - 10) + KEY
    assert KEY[:6] not in redaction.shown("MODEL_NAME", text, (KEY,))


def test_a_structure_is_cleaned_in_every_text_and_under_secret_names() -> None:
    value = {
        "hf_token": KEY,
        "plain": f"before {KEY} after",
        "list": [1, None, True, f"{KEY}", {"api_key": ["unregistered"]}],
        "count": 3,
    }
    cleaned = redaction.clean_value(value, (KEY,))
    assert cleaned == {
        "hf_token": "***",
        "plain": "before *** after",
        "list": [1, None, True, "***", {"api_key": "***"}],
        "count": 3,
    }


@pytest.mark.parametrize(
    "secret", ['quo"te-quote', "back\\slash", "new\nline", "true, ", "é漢字éé漢"]
)
def test_a_secret_that_json_would_escape_is_found_and_json_stays_json(secret: str) -> None:
    cleaned = redaction.clean_value({"text": f"a {secret} b", "flag": True}, (secret,))
    assert json.loads(json.dumps(cleaned)) == {"text": "a *** b", "flag": True}
