import numpy as np
import pytest

from paceline.envs import doom_battle, doom_maze, resolve


@pytest.mark.parametrize("maze", doom_battle.SCENARIOS.values(), ids=doom_battle.SCENARIOS)
def test_every_room_of_a_maze_can_be_reached(maze):
    floor = np.array(doom_maze.floor_plan(maze))
    assert not floor[[0, -1]].any() and not floor[:, [0, -1]].any(), "rock all around"
    assert floor[1::2, 1::2].all()
    reached = np.zeros_like(floor)
    reached[1, 1] = True
    while True:
        spread = reached.copy()
        for axis in (0, 1):
            for shift in (-1, 1):
                spread |= np.roll(reached, shift, axis)
        spread &= floor
        if (spread == reached).all():
            break
        reached = spread
    assert (reached == floor).all()


def test_a_wad_lists_its_lumps_and_is_the_same_every_time():
    maze = doom_battle.SCENARIOS["battle"]
    wad = doom_maze.wad(maze)
    assert wad == doom_maze.wad(maze) and wad[:4] == b"PWAD"
    count, directory = np.frombuffer(wad[4:12], "<i4")
    names = [wad[directory + 16 * lump + 8 :][:8].rstrip(b"\0") for lump in range(count)]
    assert names == [b"DECORATE", b"MAPINFO", b"MAP01", b"TEXTMAP", b"ENDMAP"]
    assert len(wad) == directory + 16 * count
    things = wad.count(f"type = {doom_maze.MONSTER_SPOT};".encode())
    assert things == maze.monsters


def test_a_battle_rewards_kills_and_items():
    pytest.importorskip("vizdoom")
    values = {"HEALTH": 100.0, "AMMO4": 50.0}
    game = type("Game", (), {"get_game_variable": lambda self, variable: values.get(variable.name, 0.0)})()
    battle = doom_battle.Battle(game)
    battle.begin()
    assert battle.reward() == 0.0
    values |= {"KILLCOUNT": 2.0, "AMMO4": 40.0}
    assert battle.reward() == pytest.approx(2.0 - 10 * 0.0005)
    values |= {"HEALTH": 75.0, "AMMO4": 60.0}
    assert battle.reward() == pytest.approx(20 * 0.001 - 25 * 0.003)
    values["HEALTH"] = -20.0
    assert battle.reward() == pytest.approx(-75 * 0.003), "negative health is no further loss"


def test_a_battle_in_the_engine():
    """Random play kills a few monsters, and death or the clock ends the episode."""
    pytest.importorskip("vizdoom")
    pytest.importorskip("cv2")
    env = resolve("doom:battle?actions=multi_discrete&measurements=KILLCOUNT,HEALTH,AMMO4").make(0)
    try:
        assert env.action_space.nvec.tolist() == [3, 3, 2, 2, 11]
        rng, kills, starts = np.random.default_rng(0), 0.0, set()
        for seed in range(4):
            observation, _ = env.reset(seed=seed)
            assert observation["measurements"].tolist() == [0.0, 100.0, 50.0]
            starts.add(observation["screen"].tobytes())
            ended, steps = False, 0
            while not ended:
                _, _, terminated, truncated, info = env.step(rng.integers(env.action_space.nvec))
                ended, steps = terminated or truncated, steps + 1
            kills += info["killcount"]
            assert terminated == (info["health"] <= 0) and steps <= 525
        assert kills >= 3 and len(starts) > 1
    finally:
        env.close()
