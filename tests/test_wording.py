"""Words of messages that depend on a number."""

from paceline.wording import counted


def test_one_and_many():
    assert [counted(number, "scene") for number in (0, 1, 2)] == ["0 scenes", "1 scene", "2 scenes"]
    assert counted(2000, "match", "matches") == "2,000 matches"
