"""Secrets never survive, and nothing else is lost."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankpatrol.evidence.redact import REDACTED, redact_command, redact_environment, redact_json, redact_lines, redact_text
from rankpatrol.evidence.secret_names import names_secret

SECRET_NAMES = (
    "TOKEN",
    "HF_TOKEN",
    "GITHUB_TOKEN_2",
    "hub-token",
    "trainer.api_key",
    "apiKey",
    "WANDB_API_KEY",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_ACCESS_KEY_ID",
    "AWS_SESSION_TOKEN",
    "PGPASSWORD",
    "db_password",
    "MYSQL_PWD",
    "PASSWD",
    "client-secret",
    "SECRETS",
    "PRIVATE_KEY",
    "GOOGLE_CREDENTIALS",
    "Cookie",
    "Authorization",
    "SLURM_JWT",
    "AUTH",
    "ACCESSTOKEN",
    "SENTRY_DSN",
    "X-Amz-Signature",
)
PLAIN_NAMES = (
    "NCCL_DEBUG",
    "NCCL_SOCKET_IFNAME",
    "MASTER_ADDR",
    "MASTER_PORT",
    "tokenizer",
    "tokenizer_name",
    "max_tokens",
    "max-new-tokens",
    "token_ids",
    "pad_token",
    "eos-token-id",
    "loss_per_token",
    "num_tokens",
    "tokens_per_second",
    "TOKENIZERS_PARALLELISM",
    "author",
    "keyword",
    "monkey",
    "key",
    "PWD",
    "SSH_AUTH_SOCK",
    "AWS_REGION",
    "secretary",
    "token.py",
)
PRINTABLE = "".join(chr(code) for code in range(33, 127))

# At least one character is rare in the words around it, so that finding the secret in the result is never a coincidence.
awkward = st.text(alphabet=PRINTABLE, min_size=6, max_size=30).map(lambda text: f"zQ{text}Qz")
simple = st.text(alphabet="abcdefghijklmnopqrstuvwxyzABCDEF0123456789", min_size=8, max_size=40).map(lambda text: f"zQ{text}")
names = st.sampled_from(SECRET_NAMES)
words = st.lists(
    st.sampled_from([*PLAIN_NAMES, "step", "812", "loss=2.3", "[rank0]:", "/data/x.tar", "--lr", "{", "}", "(", "https://host/x"]),
    max_size=5,
)


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_name_that_smells_is_known(name: str) -> None:
    assert names_secret(name)
    assert names_secret(f"--{name}")


@pytest.mark.parametrize("name", PLAIN_NAMES)
def test_plain_name_is_left_alone(name: str) -> None:
    assert not names_secret(name)
    assert redact_text(f"{name}=512 {name}: 512 --{name} 512") == f"{name}=512 {name}: 512 --{name} 512"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("--token abc --lr 3", "--token <redacted> --lr 3"),
        ("--password=abc step=3", "--password=<redacted> step=3"),
        ("--use-auth-token --lr 3", "--use-auth-token --lr 3"),
        ("use_auth_token=True, lr=3", "use_auth_token=True, lr=3"),
        ("export HF_TOKEN=abc; python x.py", "export HF_TOKEN=<redacted>; python x.py"),
        ("Client(api_key='a b', max_tokens=512)", "Client(api_key='<redacted>', max_tokens=512)"),
        ('{"api_key": "a\\"b c", "step": 3}', '{"api_key": "<redacted>", "step": 3}'),
        (r'{"env": "{\"HF_TOKEN\": \"abc\", \"RANK\": \"0\"}"}', r'{"env": "{\"HF_TOKEN\": \"<redacted>\", \"RANK\": \"0\"}"}'),
        ("['train.py', '--token', 'abc', '--lr', '3']", "['train.py', '--token', '<redacted>', '--lr', '3']"),
        ('os.environ["HF_TOKEN"] = "abc"', 'os.environ["HF_TOKEN"] = "<redacted>"'),
        ("password = SecretStr('a b')", "password = SecretStr('<redacted>')"),
        ("Authorization: Basic dXNlcjpwYXNz extra", "Authorization: <redacted>"),
        ("curl -H 'Authorization: Bearer abcdefgh1' https://h/x", "curl -H 'Authorization: <redacted>' https://h/x"),
        ("auth: Bearer abc", "auth: <redacted>"),
        ("sent Bearer abcdefgh12 to it", "sent Bearer <redacted> to it"),
        ("postgres://me:p@ss:w@db:5432/x?y=1", "postgres://<redacted>@db:5432/x?y=1"),
        ("cloning ssh://git@host:22/x", "cloning ssh://git@host:22/x"),
        ("https://h/x?token=abc", "https://h/x?token=<redacted>"),
        ("curl -u me:secret https://h", "curl -u <redacted> https://h"),
        ("python -u scen.py::test", "python -u scen.py::test"),
        ("login with hf_aBcDeFgHiJkLmNoPqRsT done", "login with <redacted> done"),
        (
            "hf_hub_download sk-learn task-0123456789abcdef0 from_pretrained",
            "hf_hub_download sk-learn task-0123456789abcdef0 from_pretrained",
        ),
        ("key AKIAIOSFODNN7EXAMPLE.", "key <redacted>."),
        ("password=ghp_0123456789abcdefXX!rest step=3", "password=<redacted> step=3"),
        ("Cookie: hf_aBcDeFgHiJkLmNoPqRsT; session=abc", "Cookie: <redacted>"),
        ('File "/x/token.py", line 33, in get_token', 'File "/x/token.py", line 33, in get_token'),
        ("NCCL INFO comm 0x55 rank 3 nranks 4 - Init COMPLETE", "NCCL INFO comm 0x55 rank 3 nranks 4 - Init COMPLETE"),
        ("c10d::auth::Check", "c10d::auth::Check"),
    ],
)
def test_known_forms(text: str, expected: str) -> None:
    assert redact_text(text) == expected


@pytest.mark.parametrize(
    "secret",
    [
        "AKIAIOSFODNN7EXAMPLE",
        "hf_aBcDeFgHiJkLmNoPqRsT",
        "sk-proj-0123456789abcdef",
        "ghp_0123456789abcdefABCDEF",
        "github_pat_0123456789abcdefABCDEF",
        "glpat-0123456789abcdefghij",
        "xoxb-0123456789-abc",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
    ],
)
@pytest.mark.parametrize("around", ["{}", "x={}", '"{}"', "a {} b", "https://h/{}", "({})", "[{}]"])
def test_value_with_a_shape_goes_wherever_it_stands(secret: str, around: str) -> None:
    assert secret not in redact_text(around.format(secret))


KEY = ["-----BEGIN RSA PRIVATE KEY-----", "MIIEpAIBAAKCAQEA7x" * 3, "q83vASNFZ4mrze8=", "-----END RSA PRIVATE KEY-----"]


def test_private_key_goes_with_every_line_and_the_rest_stays() -> None:
    assert redact_lines(["before", *KEY, "after"]) == ("before", REDACTED, "after")
    assert redact_lines(["before", *(f"[rank0]: {line}" for line in KEY), "after"]) == ("before", f"[rank0]: {REDACTED}", "after")


def test_private_key_cut_at_either_end_of_a_log_goes_too() -> None:
    assert redact_lines(["before", *KEY[:-1]]) == ("before", REDACTED)
    assert redact_lines([*KEY[1:], "after"]) == (REDACTED, "after")


def test_command_line_loses_values_but_no_flag() -> None:
    command = ["python", "train.py", "--token", "abc", "--password=a b", "trainer.api_key=c d", "--pad-token", "<pad>", "--seed", "3"]
    expected = (
        "python",
        "train.py",
        "--token",
        REDACTED,
        f"--password={REDACTED}",
        f"trainer.api_key={REDACTED}",
        "--pad-token",
        "<pad>",
        "--seed",
        "3",
    )
    assert redact_command(command) == expected


def test_environment_keeps_what_training_is_set_by() -> None:
    environment = {
        "NCCL_DEBUG": "INFO",
        "MASTER_ADDR": "10.0.0.1",
        "HF_TOKEN": "abc",
        "DATABASE_URL": "postgres://u:p@h/x",
        "AWS_REGION": "eu-1",
    }
    assert redact_environment(environment) == {
        "NCCL_DEBUG": "INFO",
        "MASTER_ADDR": "10.0.0.1",
        "HF_TOKEN": REDACTED,
        "DATABASE_URL": "postgres://<redacted>@h/x",
        "AWS_REGION": "eu-1",
    }


def test_json_is_read_at_every_depth() -> None:
    value = {"a": [{"password": "x", "argv": ["--token", "y"], "n": 3}], "tail": ["token=z ok"], "none": None}
    assert redact_json(value) == {
        "a": [{"password": REDACTED, "argv": ["--token", REDACTED], "n": 3}],
        "tail": ["token=<redacted> ok"],
        "none": None,
    }


@given(
    names,
    awkward,
    st.sampled_from(["{n}={s}", "{n}: {s}", "export {n}={s}", "--{n} {s}", "--{n}={s}", "{n} = {s}", "'{n}': {s}"]),
    words,
    words,
)
def test_bare_secret_never_survives_in_text(name: str, secret: str, form: str, before: list[str], after: list[str]) -> None:
    text = " ".join([*before, form.format(n=name, s=secret), *after])
    assert secret not in redact_text(text)


@given(names, awkward, words)
def test_quoted_secret_never_survives(name: str, secret: str, after: list[str]) -> None:
    for text in (json.dumps({name: f"{secret} {secret}", "x": after}), json.dumps(json.dumps({name: secret})), repr({name: secret})):
        assert secret not in redact_text(text)
        assert secret[:-2] not in redact_text(text)


@given(names, awkward, words, words)
def test_secret_never_survives_in_a_command_line_or_environment(name: str, secret: str, before: list[str], after: list[str]) -> None:
    for own in ([f"--{name}", secret], [f"--{name}={secret}"], [f"{name}={secret}"]):
        command = [*before, *own, *after]
        assert secret not in " ".join(redact_command(command))
        assert secret not in redact_text(repr(command))
        assert secret not in redact_text(" ".join(command))
    assert secret not in " ".join(redact_command([f"--{name}={secret} {secret}"]))
    assert secret not in str(redact_environment({name: secret}))


@given(simple, simple, words, words)
def test_login_in_a_url_never_survives(user: str, secret: str, before: list[str], after: list[str]) -> None:
    assert secret not in redact_text(" ".join([*before, f"https://{user}:{secret}@host/path", *after]))


pieces = st.one_of(
    awkward,
    simple,
    names,
    st.sampled_from(
        [
            *PLAIN_NAMES,
            *KEY,
            "=",
            ": ",
            " ",
            "--",
            '"',
            "'",
            "\\",
            ",",
            "\n",
            "://",
            "@",
            "Bearer ",
            "Basic ",
            "curl ",
            " -u ",
            REDACTED,
            "<",
            "[",
            "]",
        ]
    ),
    st.text(max_size=5),
)


@given(st.lists(pieces, max_size=14).map("".join))
def test_redacting_twice_is_redacting_once(text: str) -> None:
    once = redact_text(text)
    assert redact_text(once) == once


@given(st.lists(st.lists(pieces, max_size=4).map("".join), max_size=6))
def test_redacting_a_command_line_twice_is_redacting_it_once(command: list[str]) -> None:
    once = redact_command(command)
    assert redact_command(once) == once


@pytest.mark.parametrize(
    "text",
    [
        "a" * 200_000,
        "a=" * 100_000,
        "token=" * 50_000,
        "x://" + ":" * 200_000,
        ("A" * 64 + "\n") * 4_000 + KEY[-1],
        '\\"' * 60_000,
        "curl " * 40_000,
        'token="' + "\\" * 200_000,
    ],
    ids=lambda text: text[:8],
)
def test_hostile_text_takes_no_longer_than_its_length(text: str) -> None:
    began = time.process_time()
    redact_text(text)
    assert time.process_time() - began < 3


def test_the_token_of_an_exchange_is_a_secret():
    assert redact_text("rankpatrol run --exchange nats://s3cret-t0ken@n1:4222 torchrun") == (
        "rankpatrol run --exchange nats://<redacted>@n1:4222 torchrun"
    )
