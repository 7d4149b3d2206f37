"""moqt.wire.params: MOQT-22 9.20."""

from __future__ import annotations

import pytest

from moqt.codes import GroupOrder
from moqt.errors import RemoteProtocolError
from moqt.types import Location, TrackNamespace
from moqt.wire import params
from moqt.wire.cursor import Reader, Writer
from moqt.wire.filters import (
    FilterRejected,
    IdRange,
    LocationFilter,
    RangeFilter,
    RangeFilterKind,
)
from moqt.wire.params import (
    ALLOWED,
    NO_PARAMETERS,
    FillParameters,
    Parameters,
    ParameterType,
    Scope,
    check_scope,
    read_parameters,
    write_parameters,
)
from moqt.wire.tokens import AuthorizationToken

OBJECTS = RangeFilter(RangeFilterKind.OBJECT_ID, (IdRange(0, 7),))

ONE_OF_EACH = {
    ParameterType.OBJECT_DELIVERY_TIMEOUT: Parameters(object_delivery_timeout_ms=0),
    ParameterType.AUTHORIZATION_TOKEN: Parameters(
        authorization_tokens=(AuthorizationToken.use_alias(1),)
    ),
    ParameterType.RENDEZVOUS_TIMEOUT: Parameters(rendezvous_timeout_ms=1),
    ParameterType.SUBGROUP_DELIVERY_TIMEOUT: Parameters(subgroup_delivery_timeout_ms=1),
    ParameterType.EXPIRES: Parameters(expires_ms=0),
    ParameterType.LARGEST_OBJECT: Parameters(largest=Location(0, 0)),
    ParameterType.FILL_TIMEOUT: Parameters(fill_timeout_ms=1),
    ParameterType.FORWARD: Parameters(forward=False),
    ParameterType.SUBSCRIBER_PRIORITY: Parameters(subscriber_priority=0),
    ParameterType.LOCATION_FILTER: Parameters(location_filter=LocationFilter.none()),
    ParameterType.GROUP_ORDER: Parameters(group_order=GroupOrder.DESCENDING),
    ParameterType.FILL_PARAMETERS: Parameters(fill=FillParameters()),
    ParameterType.NEW_GROUP_REQUEST: Parameters(new_group_request=0),
    ParameterType.TRACK_NAMESPACE_PREFIX: Parameters(namespace_prefix=TrackNamespace()),
    ParameterType.INCLUDE_PROPERTIES: Parameters(include_properties=False),
    **{
        ParameterType(kind): Parameters(
            range_filters=(
                RangeFilter(kind, (IdRange(0),), property_type=2 if kind >= 0x28 else None),
            )
        )
        for kind in RangeFilterKind
    },
}


def write(parameters: Parameters, scope: Scope) -> bytes:
    writer = Writer()
    write_parameters(writer, parameters, scope)
    return bytes(writer)


def read(octets: bytes | str, scope: Scope) -> Parameters:
    raw = bytes.fromhex(octets) if isinstance(octets, str) else octets
    reader = Reader(raw, scope.value)
    found = read_parameters(reader, scope)
    reader.expect_end()
    return found


def test_every_parameter_is_in_the_matrix() -> None:
    assert set(ONE_OF_EACH) == set(ParameterType)


@pytest.mark.parametrize("scope", [scope for scope in Scope if scope is not Scope.FILL])
@pytest.mark.parametrize("kind", ParameterType)
def test_scope_matrix(kind: ParameterType, scope: Scope) -> None:
    """9.20#7, 9.20.1#1: read and written where it is allowed, closed for and refused elsewhere."""
    parameters = ONE_OF_EACH[kind]
    assert parameters.types == {kind}
    home = next(scope for scope, allowed in ALLOWED.items() if kind in allowed)
    octets = write(parameters, home)
    if kind in ALLOWED[scope]:
        assert read(octets, scope) == parameters
        assert check_scope(parameters, scope) is None
        return
    with pytest.raises(RemoteProtocolError, match=f"{kind.name} is not allowed in"):
        read(octets, scope)
    with pytest.raises(ValueError, match=f"{kind.name} not allowed in"):
        write(parameters, scope)
    assert kind.name in str(check_scope(parameters, scope))


@pytest.mark.parametrize("kind", ParameterType)
def test_what_may_stand_in_a_fill(kind: ParameterType) -> None:
    """9.20.15#1: the counted and the bare form."""
    home = next(scope for scope, allowed in ALLOWED.items() if kind in allowed)
    inner = write(ONE_OF_EACH[kind], home)
    for form in (inner, inner[1:]):
        octets = b"\x01\x23" + bytes([len(form)]) + form
        if kind in ALLOWED[Scope.FILL]:
            fill = read(octets, Scope.SUBSCRIBE).fill
            assert fill is not None
            assert fill != FillParameters()
        else:
            with pytest.raises(RemoteProtocolError):
                read(octets, Scope.SUBSCRIBE)


def test_no_parameters_are_one_octet() -> None:
    assert write(NO_PARAMETERS, Scope.FETCH_OK) == b"\x00"
    assert read("00", Scope.FETCH_OK) is NO_PARAMETERS


def test_types_ascend_as_deltas() -> None:
    """9.20#1."""
    both = Parameters(subscriber_priority=200, expires_ms=5, forward=True)
    with pytest.raises(ValueError, match="EXPIRES"):
        write(both, Scope.SUBSCRIBE)
    octets = write(Parameters(subscriber_priority=200, forward=True), Scope.SUBSCRIBE)
    assert octets.hex(" ") == "02 10 01 10 c8"


@pytest.mark.parametrize(
    ("octets", "why"),
    [
        ("010c00", "unknown parameter 0xc"),
        ("021000" + "ff" * 9 + "00", "above 2\\^64-1"),
        ("0210010001", "FORWARD is repeated"),
        ("011002", "FORWARD is 2"),
        ("012200", "GROUP_ORDER is 0"),
        ("012203", "GROUP_ORDER is 3"),
        ("0135ff", "INCLUDE_PROPERTIES is 255"),
        ("021001", "ends inside Type Delta"),
        ("01230301", "ends inside FILL_PARAMETERS"),
        ("0123022203", "GROUP_ORDER is 3"),
        ("012303012205", "GROUP_ORDER is 5"),
        ("01230302ff22", "ends inside"),
        ("0123020001", "1 octets too many"),
    ],
)
def test_what_closes_the_session(octets: str, why: str) -> None:
    """9.20#2, #3, #5, 9.20.8#1, 9.20.18#1, 9.20.21#2."""
    with pytest.raises(RemoteProtocolError, match=why):
        read(octets, Scope.SUBSCRIBE)


def test_both_forms_of_a_fill_are_read_and_one_switch_decides_what_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """AMB#9."""
    fill = Parameters(fill=FillParameters(group_order=GroupOrder.ASCENDING))
    assert write(fill, Scope.SUBSCRIBE).hex() == "012303012201"
    monkeypatch.setattr(params, "FILL_WITH_COUNT", False)
    assert write(fill, Scope.SUBSCRIBE).hex() == "0123022201"
    for form in ("012303012201", "0123022201"):
        assert read(form, Scope.SUBSCRIBE) == fill
    for empty in ("012300", "01230100"):
        assert read(empty, Scope.SUBSCRIBE) == Parameters(fill=FillParameters())


def test_a_fill_of_ten_parameters_would_be_ambiguous() -> None:
    filters = tuple(
        RangeFilter(RangeFilterKind.OBJECT_ID, (IdRange(0),), set_id) for set_id in range(10)
    )
    write(Parameters(fill=FillParameters(range_filters=filters[:9])), Scope.SUBSCRIBE)
    with pytest.raises(ValueError, match="10 parameters"):
        write(Parameters(fill=FillParameters(range_filters=filters)), Scope.SUBSCRIBE)


def test_a_track_filter_in_a_fill_is_refused() -> None:
    track = RangeFilter(RangeFilterKind.TRACK_PROPERTY, (IdRange(0),), property_type=2)
    with pytest.raises(ValueError, match="TRACK_PROPERTY_FILTER"):
        write(Parameters(fill=FillParameters(range_filters=(track,))), Scope.SUBSCRIBE)


def test_length_0_removes_a_kind() -> None:
    found = read("0226000100", Scope.UPDATE_SUBSCRIPTION)
    kinds = frozenset({RangeFilterKind.OBJECT_ID, RangeFilterKind.PRIORITY})
    assert found == Parameters(removed_range_filters=kinds)
    assert found.types == {ParameterType.OBJECTID_FILTER, ParameterType.PRIORITY_FILTER}
    assert write(found, Scope.UPDATE_SUBSCRIPTION).hex() == "0226000100"


def test_an_invalid_filter_is_kept_so_that_its_request_can_be_refused() -> None:
    """The session goes on: the request is answered with INVALID_FILTER."""
    found = read("0128" + "0400030100", Scope.SUBSCRIBE)
    assert found.types == {ParameterType.OBJECT_PROPERTY_FILTER}
    assert check_scope(found, Scope.SUBSCRIBE) is None
    with pytest.raises(FilterRejected, match="is odd"):
        found.check_filters(32)


def test_ranges_of_a_fill_count_with_their_subscription() -> None:
    """3.3.2#2."""
    both = Parameters(range_filters=(OBJECTS,), fill=FillParameters(range_filters=(OBJECTS,)))
    both.check_filters(2)
    with pytest.raises(FilterRejected, match="2 filter ranges, at most 1"):
        both.check_filters(1)
    twice = Parameters(fill=FillParameters(range_filters=(OBJECTS, OBJECTS)))
    with pytest.raises(FilterRejected, match="repeated"):
        twice.check_filters(9)
    NO_PARAMETERS.check_filters(0)


def test_a_priority_that_is_no_octet_is_our_mistake() -> None:
    with pytest.raises(ValueError, match="256"):
        write(Parameters(subscriber_priority=256), Scope.SUBSCRIBE)
