"""moqt.wire.tokens: MOQT-22 8.9."""

from __future__ import annotations

import pytest

from moqt.codes import SessionErrorCode
from moqt.errors import RemoteProtocolError
from moqt.wire.tokens import AliasType, AuthorizationToken


def test_the_value_never_shows() -> None:
    token = AuthorizationToken.use_value(0, b"secret")
    assert "secret" not in repr(token)
    assert "secret" not in str(token)


@pytest.mark.parametrize(
    ("token", "octets"),
    [
        (AuthorizationToken.delete(7), "0007"),
        (AuthorizationToken.register(7, 2, b"\xaa"), "010702aa"),
        (AuthorizationToken.use_alias(300), "02812c"),
        (AuthorizationToken.use_value(0, b"\xaa\x55"), "0300aa55"),
        (AuthorizationToken.use_value(0, b""), "0300"),
    ],
)
def test_each_form(token: AuthorizationToken, octets: str) -> None:
    assert token.serialize().hex() == octets
    assert AuthorizationToken.parse(bytes.fromhex(octets)) == token


@pytest.mark.parametrize("octets", ["", "04", "00", "01", "0107", "000700", "020700", "03", "0380"])
def test_what_is_no_token_closes_with_key_value_formatting_error(octets: str) -> None:
    """8.9#1."""
    with pytest.raises(RemoteProtocolError) as caught:
        AuthorizationToken.parse(bytes.fromhex(octets))
    assert caught.value.code is SessionErrorCode.KEY_VALUE_FORMATTING_ERROR


@pytest.mark.parametrize(
    ("alias_type", "alias", "token_type", "value"),
    [
        (AliasType.DELETE, None, None, None),
        (AliasType.USE_VALUE, 1, 0, b""),
        (AliasType.REGISTER, 1, None, b""),
        (AliasType.REGISTER, 1, 0, None),
        (AliasType.USE_ALIAS, 1, 0, None),
        (AliasType.USE_ALIAS, 1, 0, b""),
    ],
)
def test_fields_that_do_not_fit_their_alias_type_are_refused(
    alias_type: AliasType, alias: int | None, token_type: int | None, value: bytes | None
) -> None:
    with pytest.raises(ValueError, match="not fit"):
        AuthorizationToken(alias_type, alias, token_type, value)
