"""Top-down maps of houses."""

import numpy as np

from paceline.sims.navigation.rendering.maps import Canvas
from paceline.sims.rearrangement.rendering.house_map import GOAL, TARGET, house_map


def test_a_map_shows_objects_goals_and_open_doors(banks):
    bank = banks["small", "tidy_house"]
    empty, full, opened = house_map(bank, 0), house_map(bank, 0, 3), house_map(bank, 0, values=(1.5, 0.4, 0.0))
    assert empty.shape == full.shape and max(empty.shape) == 512
    for color in (GOAL, TARGET):
        assert not (empty == color).all(2).any() and (full == color).all(2).sum() > 20
    assert (empty != opened).any()
    assert (house_map(bank, 0, poses=[(2.0, 2.0, 0.0)]) != empty).any()


def test_a_turned_box_covers_its_area():
    canvas = Canvas(0, 0, 4, 4, 50)
    canvas.box((2.0, 1.0, 0.8, 0.2, 0.7), (0, 0, 0))
    covered = (255 - canvas.pixels()[..., 0]) / 255
    assert abs(covered.sum() / 50**2 - 0.64) < 0.01
    rows, columns = np.nonzero(covered > 0.5)
    assert abs(columns.mean() / 50 - 2.0) < 0.02 and abs(rows.mean() / 50 - 3.0) < 0.02
    # It rises towards larger x: y points up.
    assert np.corrcoef(columns, rows)[0, 1] < -0.5
