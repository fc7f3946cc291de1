"""Which names smell of a secret: `HF_TOKEN` does, `max_tokens`, `pad_token` and `NCCL_DEBUG` do not. Pure."""

import functools
import re
from itertools import pairwise

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")

_SECRET_WORDS = frozenset({"AUTH", "AUTHORIZATION", "BEARER", "DSN", "JWT", "OAUTH", "WEBHOOK"})
_SECRET_ENDINGS = (
    "ACCESSKEY",
    "APIKEY",
    "COOKIE",
    "COOKIES",
    "CREDENTIAL",
    "CREDENTIALS",
    "PASSPHRASE",
    "PASSWD",
    "PASSWORD",
    "PASSWORDS",
    "PRIVATEKEY",
    "SECRET",
    "SECRETKEY",
    "SECRETS",
    "TOKEN",
)
_SECRET_PAIRS = frozenset(
    {(kind, "KEY") for kind in ("ACCESS", "ACCOUNT", "API", "AUTH", "ENCRYPTION", "PRIVATE", "SECRET", "SHARED", "SIGNING", "STORAGE")}
    | {(kind, "TOKENS") for kind in ("ACCESS", "API", "AUTH", "BEARER")}
    | {("AMZ", "SIGNATURE"), ("MYSQL", "PWD")}
)

# Settings of the AWS tools that say where, never who.
_AWS_PLAIN = re.compile("AWS_(DEFAULT_OUTPUT|DEFAULT_REGION|EC2_METADATA_DISABLED|MAX_ATTEMPTS|PROFILE|REGION)")

# A language model's tokens are no secrets. What stands beside the word tells which kind it is.
_BEFORE_TEXT_TOKEN = re.compile(
    "ADDED|AUDIO|BOS|BY|CLS|EACH|END|EOS|FIRST|IMAGE|INPUT|LAST|MASK|MAX|MIN|NEW|NEXT|NUM|OUTPUT|PAD|PER|PREV|PREVIOUS|PROMPT|SEP|SPECIAL|"
    "START|STOP|UNEXPECTED|UNK|VIDEO"
)
_AFTER_TEXT_TOKEN = re.compile(
    "ACC|ACCURACY|BATCH|BUDGET|CLASSIFICATION|COUNT|DIM|DROPOUT|EMBED|EMBEDDINGS?|IDS?|IDX|INDEX|LEN|LENGTH|LIMIT|LOGPROBS?|LOSS|MASK|NUM|POS|"
    "POSITION|PROB|RATE|SIZE|TYPES?"
)
# After any secret word: a fact about the secret, or a source file in a stack.
_AFTER_ANY = re.compile("CC?|CPP|ENABLED|ERROR|EXCEPTION|GO|H|METHOD|MODE|PLUGIN|PYC?|RS|SO|SOCK")


@functools.lru_cache(maxsize=4096)
def names_secret(name: str) -> bool:
    """Whether the value under this variable, flag or key is to be hidden."""
    name = name.strip("-")
    if name.upper().startswith("AWS_"):
        return not _AWS_PLAIN.fullmatch(name.upper())
    words = [word.upper() for word in _WORD.findall(name)]
    if any(pair in _SECRET_PAIRS for pair in pairwise(words)):
        return True
    return any(_is_secret(*around) for around in zip(["", *words], words, [*words[1:], ""], strict=False))


def takes_whole_line(name: str) -> bool:
    """Whether the value runs to the end of its line, as in `Authorization: Basic …` and `Cookie: a=1; b=2`."""
    return any(word.upper() in {"AUTHORIZATION", "COOKIE", "COOKIES"} for word in _WORD.findall(name))


def _is_secret(before: str, word: str, after: str) -> bool:
    if _AFTER_ANY.fullmatch(after):
        return False
    if word == "TOKEN":
        return not (_BEFORE_TEXT_TOKEN.fullmatch(before) or _AFTER_TEXT_TOKEN.fullmatch(after))
    return word in _SECRET_WORDS or word.endswith(_SECRET_ENDINGS)
