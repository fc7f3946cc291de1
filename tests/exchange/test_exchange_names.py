"""Names of nodes and addresses of exchanges: what people write, and what a hostile one writes."""

import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankpatrol.core.errors import PatrolError, UsageProblem
from rankpatrol.exchange.address import Address, parse_address
from rankpatrol.exchange.names import name_of, token_of
from rankpatrol.exchange.subjects import orders_to, state_of, to_node

ANY_NAME = st.binary(max_size=200).map(os.fsdecode)


@given(ANY_NAME)
def test_a_name_comes_back_from_its_token(name):
    assert name_of(token_of(name)) == name


@given(ANY_NAME)
def test_a_token_is_one_plain_token(name):
    assert re.fullmatch(r"[A-Za-z0-9_=-]+", token_of(name))
    assert state_of(name).count(".") == orders_to(name).count(".") - 1 == 2
    assert to_node(name, "do", name).count(".") == 4


@given(ANY_NAME, ANY_NAME)
def test_two_names_never_share_a_token(one, other):
    assert (token_of(one) == token_of(other)) == (one == other)


@given(st.text(max_size=40))
def test_any_token_is_a_name_or_none(token):
    name = name_of(token)
    assert name is None or token_of(name) == token


@pytest.mark.parametrize("token", ["a.b", "", "a b", "=4", "=zz", "=61", "ü", "*", ">"])
def test_what_is_no_token_names_nobody(token):
    assert name_of(token) is None


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("nats://n0:4222", Address(scheme="nats", host="n0", port=4222)),
        ("nats://n0", Address(scheme="nats", host="n0", port=4222)),
        ("nats://n0:4222/", Address(scheme="nats", host="n0", port=4222)),
        ("nats://s3cr-t_@10.0.0.1:5", Address(scheme="nats", host="10.0.0.1", port=5, token="s3cr-t_")),
        ("nats://a%40b%3A%2F@n0:1", Address(scheme="nats", host="n0", port=1, token="a@b:/")),
        ("nats://[fe80::1%25eth0]:4222", Address(scheme="nats", host="fe80::1%eth0", port=4222)),
        ("tls://hub.cluster:4222", Address(scheme="tls", host="hub.cluster", port=4222)),
        ("local:", Address(scheme="local")),
        ("local:other", Address(scheme="local", room="other")),
    ],
)
def test_addresses_that_are_understood(text, wanted):
    assert parse_address(text) == wanted
    assert parse_address(parse_address(text).url(secret=True)) == wanted


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no address"),
        ("n0:4222", "no address"),
        ("http://n0", "no address"),
        ("nats:n0", "no address"),
        ("nats://", "names no HOST:PORT"),
        ("nats://n0:port", "names no HOST:PORT"),
        ("nats://n0:4222/path", "names no HOST:PORT"),
        ("nats://fe80::1:4222", "names no HOST:PORT"),
        ("nats://n 0:4222", "names no HOST:PORT"),
        ("nats://n0:0", "no port 0"),
        ("nats://n0:99999", "no port 99999"),
        ("nats://user:hush@n0:4222", "user and a password"),
        ("tls://hush@n0:4222", "holds a token"),
        ("nats://hush@n0:no", "names no HOST:PORT"),
        ("natz://hush@n0:4222", "no address"),
    ],
)
def test_addresses_that_are_refused_with_a_reason_and_without_their_secret(text, said):
    with pytest.raises(UsageProblem, match=said) as refused:
        parse_address(text)
    assert "hush" not in str(refused.value)
    assert refused.value.help != PatrolError.help


def test_a_token_is_not_shown_unless_asked_for():
    address = parse_address("nats://hush@n0:4222")
    assert "hush" not in f"{address} {address!r}"
    assert address.url(secret=True) == "nats://hush@n0:4222"
