"""Settings in messages: options of the command line in a command, keywords in Python."""

from __future__ import annotations

import pytest

from paceline.errors import UsageError
from paceline.keywords import as_keywords, keywords_in_messages, options_in_messages


@pytest.mark.parametrize(
    ("option", "keyword"),
    [
        ("a larger --steps extends it", "a larger steps extends it"),
        ("more --pool.num-envs, --ppo.sequences packed", "more pool.num_envs, ppo.sequences packed"),
        ("--replay.no-prioritized", "replay.prioritized=False"),
        ("--resume continues it, another --run-dir", "resume=True continues it, another folder"),
        ("allowed: --env gym:CartPole-v1, or", 'allowed: env="gym:CartPole-v1", or'),
        ("the same --env, or a--steps in ls --color", "the same env, or a--steps in ls --color"),
    ],
)
def test_options_become_keywords(option, keyword):
    assert as_keywords(option) == keyword
    assert as_keywords(keyword) == keyword


@keywords_in_messages
def refuse():
    raise UsageError("allowed: --trust")


def test_a_command_keeps_options_and_python_gets_keywords():
    with pytest.raises(UsageError, match="allowed: trust=True"):
        refuse()
    with options_in_messages(), pytest.raises(UsageError, match="allowed: --trust"):
        refuse()
