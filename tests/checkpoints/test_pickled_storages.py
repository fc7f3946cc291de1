import pickle

from hypothesis import given, settings
from hypothesis import strategies as st

from rankpatrol.checkpoints.pickled_storages import PickleWalk, walk
from rankpatrol.core.records import Missing

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.binary(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=6)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=5), inner, max_size=5)
        | st.sets(st.integers(), max_size=4)
    ),
    max_leaves=30,
)


@given(values, st.integers(0, 5))
@settings(deadline=None)
def test_any_plain_pickle_is_walked_to_its_end(value: object, protocol: int) -> None:
    data = pickle.dumps(value, protocol)
    assert walk(data + b"more") == PickleWalk((), len(data))


@given(st.binary(max_size=200))
@settings(deadline=None, max_examples=500)
def test_any_bytes_are_walked_or_given_up_with_a_reason(data: bytes) -> None:
    assert isinstance(walk(b"\x80\x02" + data), PickleWalk | Missing)


def test_a_storage_of_unknown_type_is_not_guessed_at() -> None:
    found = walk(b"\x80\x02(X\x07\x00\x00\x00storagectorch\nNovelStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x05tQ.")
    assert isinstance(found, Missing)
    assert "torch.NovelStorage" in found.reason


def test_nested_tuples_cost_no_more_than_their_bytes() -> None:
    assert isinstance(walk(b"(" * 200_000 + b"t" * 200_000 + b"."), PickleWalk)
