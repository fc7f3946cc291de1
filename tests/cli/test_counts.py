import pytest

from rankpatrol.core.counts import say_count


@pytest.mark.parametrize(
    ("number", "words", "said"),
    [(0, ("rank",), "0 ranks"), (1, ("rank",), "1 rank"), (2, ("rank",), "2 ranks"), (3, ("process", "processes"), "3 processes")],
)
def test_a_count_agrees_with_its_word(number, words, said):
    assert say_count(number, *words) == said
