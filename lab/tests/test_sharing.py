"""What repeats is written once, and nothing is lost."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle_lab import sharing

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text("abc", min_size=1, max_size=2), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.lists(JSON, max_size=6).flatmap(lambda some: st.lists(st.sampled_from([*some, None]), max_size=12)))
def test_nothing_is_lost(values: list[Any]) -> None:
    packed, parts = json.loads(json.dumps(sharing.pack(values)))
    assert sharing.unpack(packed, parts) == values


def test_what_repeats_is_there_once() -> None:
    inner = {"a long name": 1, "another": [1, 2, 3]}
    values = [{"own": seed, "same": inner, "more": [inner]} for seed in range(3)]
    packed, parts = sharing.pack(values)
    assert parts == [inner, [{"$": 0}]]
    assert packed == [{"own": seed, "same": {"$": 0}, "more": {"$": 1}} for seed in range(3)]


@pytest.mark.parametrize("reference", [5, 0])
def test_a_reference_that_leads_nowhere_is_an_error(reference: int) -> None:
    with pytest.raises(LookupError):
        sharing.unpack([], [{"$": reference}])
