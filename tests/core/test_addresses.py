"""What a URL shows: nothing that its owner keeps to himself (§13.5, §14.4)."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from holdfast.core.addresses import mask, parse, scrub

NESTED = "postgresql://u:hunter2@other/db"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:hunter2@host/db", "postgresql://u:***@host/db"),
        ("postgresql://u:hun%40ter2@host/db", "postgresql://u:***@host/db"),
        ("postgresql://:hunter2@host/db", "postgresql://:***@host/db"),
        ("postgres://u:hunter2@[::1]:5432,other:1/db", "postgres://u:***@[::1]:5432,other:1/db"),
        ("postgresql://u:hun?ter2@host/db", "postgresql://u:***@host/db"),
        ("postgresql://u:hun#ter2@host/db", "postgresql://u:***@host/db"),
        ("postgresql://u:hun:ter2@host/db", "postgresql://u:***@host/db"),
        ("postgresql://u:hun/ter2@host:1/db", "postgresql://u:***@host:1/db"),
        ("postgresql://u:hun@ter2@host:1/db", "postgresql://u:***@host:1/db"),
        ("postgresql://u:123/ter2@host/db", "postgresql://u:***@host/db"),
        ("postgresql://u:hun?x/ter2@host/db?user=u", "postgresql://u:***@host/db?user=u"),
        ("postgresql://u:hunter2", "postgresql://u:***"),
        ("postgresql:///db?host=/run/pg&user=u&password=hunter2", "postgresql:///db?host=/run/pg&user=u&password=***"),
        ("postgresql:///db?PASSWORD=hunter2&sslmode=require", "postgresql:///db?PASSWORD=***&sslmode=require"),
        ("postgresql:///db?pass%77ord=hunter2", "postgresql:///db?pass%77ord=***"),
        ("postgresql:///db?sslpassword=hunter2&sslkey=/k", "postgresql:///db?sslpassword=***&sslkey=/k"),
        ("postgresql:///db?oauth_client_secret=hunter2", "postgresql:///db?oauth_client_secret=***"),
        (f"postgresql://u:hunter2@host/db?pooler=transaction&listen={NESTED}", "postgresql://u:***@host/db?pooler=transaction&listen=postgresql://u:***@other/db"),
        (f"postgresql:///db?listen={quote(NESTED, safe='')}&partitions=4", "postgresql:///db?listen=postgresql://u:***@other/db&partitions=4"),
        (f"postgresql:///db?listen={NESTED}?sslpassword=hunter2", "postgresql:///db?listen=postgresql://u:***@other/db%3Fsslpassword%3D***"),
        ("postgresql:///db?listen=host%3Dh%20password%3D'hun%20ter2'", "postgresql:///db?listen=host%3Dh%20password%3D***"),
        ("host=h user=u password=hunter2 dbname=d", "host=h user=u password=*** dbname=d"),
        ("postgresql:u:hunter2@host/db", "postgresql:***@host/db"),
        ("https://u:hunter2@host/hook?token=hunter2", "https://u:***@host/hook?token=***"),
    ],
)
def test_what_is_secret_is_not_shown_wherever_it_stands(url: str, shown: str) -> None:
    assert mask(url) == shown
    assert mask(shown) == shown
    assert "ter2" not in scrub(f'cannot read "{url}"', url)


@pytest.mark.parametrize(
    "url",
    [
        "memory:", "workspace:/srv/a:b@c", "sqlite:////srv/a:b@c/runs.db", "runs.db", "postgresql://host/db", "postgresql://u@host:5432/db", "postgresql://u@[::1]:5432/db",
        "postgresql:///db?host=/tmp/pg&user=u&sslmode=verify-full&options=-c%20statement_timeout%3D5", "postgresql://a:1,b:2/db?target_session_attrs=read-write",
        "postgresql://h/db?password", "postgresql://h/db?password=", "postgresql://h/db?sslmode=&x", "postgresql://u@a@b/db", "ann@host",
    ],
)
def test_a_url_without_a_secret_is_shown_as_it_is(url: str) -> None:
    assert mask(url) == url


def test_what_a_library_repeats_of_a_secret_is_hidden_in_each_of_its_forms() -> None:
    url = "postgresql://u:a%40hunter2@host/db?sslpassword=sesame"
    assert scrub("token a@hunter2 of a%40hunter2, sesame", url) == "token *** of ***, ***"


@pytest.mark.parametrize(
    ("url", "clear"),
    [("postgresql://u:a?b@h/db", True), ("postgresql://u:a/b@h/db", False), ("postgresql://u:a@b@h/db", False), ("postgresql://u:1/b@h/db", False), ("postgresql:///a@b", True), ("postgresql://h/db?x", False)],
)
def test_a_url_whose_password_has_no_clear_end_is_told(url: str, clear: bool) -> None:
    found = parse(url)
    assert found is not None and found.clear is clear


@pytest.mark.parametrize(
    ("url", "parameters"),
    [
        ("postgresql://u@h/db", []),
        ("postgresql://h/db?", []),
        ("postgresql://h/db?user=u&&pool%65r=a%3Db", [("user=u", "user", "u"), ("pool%65r=a%3Db", "pooler", "a=b")]),
        ("postgresql://h/db?listen=postgresql://o/db?x=1", [("listen=postgresql://o/db?x=1", "listen", "postgresql://o/db?x=1")]),
        ("postgresql://h/db?sslmode=&bare", [("sslmode=", "sslmode", ""), ("bare", "bare", "")]),
    ],
)
def test_a_parameter_is_given_as_it_is_written_and_decoded(url: str, parameters: list[tuple[str, str, str]]) -> None:
    """Who takes a parameter out of a URL needs both: the name that it has, and the text that stands there."""
    found = parse(url)
    assert found is not None and found.parameters() == parameters
