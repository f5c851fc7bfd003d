from paceline.envs import doom_actions

BUTTONS = ["ATTACK", "MOVE_LEFT", "SELECT_WEAPON1", "MOVE_RIGHT", "SELECT_WEAPON2", "TURN_LEFT_RIGHT_DELTA"]


def test_discrete_presses_one_button_or_turns():
    actions = doom_actions.Discrete(BUTTONS)
    assert actions.space.n == 8
    assert actions.press(0) == [0] * 6
    assert actions.press(1) == [1, 0, 0, 0, 0, 0]
    assert actions.press(5) == [0, 0, 0, 0, 1, 0]
    assert actions.press(6) == [0, 0, 0, 0, 0, -12.5]
    assert actions.press(7) == [0, 0, 0, 0, 0, 12.5]


def test_multi_discrete_groups_exclusive_buttons():
    actions = doom_actions.MultiDiscrete(BUTTONS)
    assert actions.space.nvec.tolist() == [2, 3, 3, 21]  # attack, strafe, weapon, turn
    assert actions.press([0, 0, 0, 10]) == [0] * 6
    assert actions.press([1, 2, 1, 0]) == [1, 0, 1, 1, 0, -12.5]
    assert actions.press([0, 1, 2, 20]) == [0, 1, 0, 0, 1, 12.5]


def test_a_button_without_its_opposite_is_a_choice_of_two():
    assert doom_actions.MultiDiscrete(["TURN_LEFT", "TURN_RIGHT", "MOVE_FORWARD"]).space.nvec.tolist() == [3, 2]
