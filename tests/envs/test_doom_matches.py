"""Matches between agents: what they observe and reward, and what is left of a match that fails."""

import os
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

pytest.importorskip("vizdoom")
pytest.importorskip("cv2")

from paceline.envs import doom_engine, doom_match_process, doom_matches, doom_rewards, resolve
from paceline.envs.doom_match_process import MatchFailed
from paceline.envs.doom_players import PlayerView
from paceline.envs.udp_ports import ReservedPort
from paceline.errors import UsageError
from paceline.pool.config import PoolConfig
from paceline.pool.process import ProcessPool
from paceline.pool.serial import SerialPool
from paceline.telemetry.episodes import LatestEpisodes

POOLS = {"serial": SerialPool, "process": ProcessPool}


@pytest.fixture
def make():
    """Builds environments and closes them after the test."""
    envs = []

    def make(text):
        envs.append(resolve(text).make(0))
        return envs[-1]

    yield make
    for env in envs:
        env.close()


def engines(of=None):
    """Living engines below this process, or below process `of`: their ids and command lines."""
    found = {}
    for process in psutil.Process(of).children(recursive=True):
        try:
            if process.name() == "vizdoom" and process.status() != psutil.STATUS_ZOMBIE:
                found[process.pid] = process.cmdline()
        except psutil.NoSuchProcess:
            continue
    return found


def shared_memory(commands):
    """Files of the engines with these command lines that are in shared memory."""
    names = [command[command.index("+viz_instance_id") + 1] for command in commands]
    return [file for file in os.listdir("/dev/shm") if any(file.endswith(name) for name in names)]


def host_ports(commands):
    return {int(command[command.index("-port") + 1]) for command in commands if "-port" in command}


def is_free(port):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True


def random_step(env, rng):
    return env.step({agent: rng.integers(env.action_space(agent).nvec) for agent in env.agents})


def test_a_duel_from_start_to_end(make):
    env = make("doom:duel?measurements=true&frames=101")
    assert env.possible_agents == ["player_0", "player_1"]
    assert env.action_space("player_0").nvec.prod() == 12096
    observations, infos = env.reset(seed=1)
    assert env.agents == env.possible_agents and infos == {"player_0": {}, "player_1": {}}
    assert not np.array_equal(observations["player_0"]["screen"], observations["player_1"]["screen"])
    rng, steps, pids = np.random.default_rng(0), 0, set(engines())
    while env.agents:
        observations, rewards, terminations, truncations, infos = random_step(env, rng)
        steps += 1
        scores = env._match.ask("scores")
        assert scores[0] == scores[1], "the engines agree on the match"
        for agent in env.possible_agents:
            assert env.observation_space(agent).contains(observations[agent])
            assert observations[agent]["measurements"].shape == (23,)
            assert np.isfinite(rewards[agent]) and not terminations[agent]
            assert truncations[agent] == (steps == 51)
    assert steps == 51, "101 frames, two in a step"
    assert all(infos[agent].keys() == {"frags", "deaths", "win"} for agent in env.possible_agents)
    env.reset()
    assert len(pids) == 2 and set(engines()) == pids, "the next match needs no other engines"
    random_step(env, rng)
    assert env.render().shape == (72, 256, 3)


@pytest.mark.parametrize("env_id", ["doom:duel?frameskip=5", "doom:duel?players=3&frameskip=4"])
def test_engines_do_not_hang_in_long_steps(make, env_id):
    """Engines that run more than two frames without waiting for each other hang."""
    env = make(f"{env_id}&timeout_seconds=120")
    env.reset(seed=1)
    rng, before = np.random.default_rng(0), env._views[0].frame
    for _ in range(20):
        random_step(env, rng)
    skip = env._settings.frameskip
    assert [view.frame - before for view in env._views] == [20 * skip] * len(env.agents)


def test_a_duel_with_rocket_launchers(make):
    env = make("doom:rocket_duel?measurements=SELECTED_WEAPON,SELECTED_WEAPON_AMMO&frameskip=4")
    env.reset(seed=1)
    nothing = dict.fromkeys(env.agents, np.zeros(7, np.int64))
    for _ in range(10):
        observations, *_ = env.step(nothing)
    assert [observations[agent]["measurements"].tolist() for agent in env.agents] == [[5.0, 50.0]] * 2


def test_the_health_of_the_dead_is_0(make):
    """The engine reports -999,900 for a player that another one appears in."""
    env = make("doom:duel?measurements=AMMO5,HEALTH")
    values = np.full(len(env._variables), 3.0)
    values[[env._variables.index(name) for name in ("AMMO5", "HEALTH")]] = 7, -999_900
    view = PlayerView(screen=np.zeros((3, 72, 128), np.uint8), variables=values, frame=0)
    assert env._observation(view)["measurements"].tolist() == [7.0, 0.0]


def test_a_run_reports_frags_deaths_and_wins():
    with SerialPool(resolve("doom:duel?frames=4"), PoolConfig(num_envs=1), seed=1) as pool:
        batch = pool.recv(min_slots=None)
        pool.send(np.zeros((2, 7), np.int64), batch.slots)
        pool.send(np.zeros((2, 7), np.int64), pool.recv(min_slots=None).slots)
        pool.recv(min_slots=None)
        means = LatestEpisodes(pool.spec.measures)
        means.add(means.sums_of(pool.take_episodes()))
    assert means.means() == pytest.approx(
        {"episode_return": 0, "episode_length": 2, "episode_frags": 0, "episode_deaths": 0, "episode_win": 0.5}, abs=0.1
    )


def test_the_seed_decides_where_players_appear(make):
    env = make("doom:duel")
    first, other, again = (env.reset(seed=seed)[0]["player_1"] for seed in (3, None, 3))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_nobody_is_dead_when_a_match_starts(make):
    """In this room players often appear inside each other."""
    env = make("doom:rocket_duel?resolution=64x40&measurements=DEAD")
    plain, begun = env._ask, []
    env._ask = lambda command, arguments=None: (begun.append(command), plain(command, arguments))[1]
    for seed in (5, *[None] * 9):
        observations, _ = env.reset(seed=seed)
        assert [observations[agent]["measurements"].item() for agent in env.agents] == [0.0, 0.0]
    assert len(begun) > 10


def test_a_match_starts_with_the_dead_if_the_map_has_no_room(make):
    env = make("doom:duel")
    view = type("View", (), {"variables": shaped(DEAD=1), "frame": 1, "screen": None})
    begun = []
    env._match, env._ask = object(), lambda command, arguments=None: (begun.append(command), [view] * 2)[1]
    env.reset()
    env._match = None
    assert begun == ["begin"] * doom_matches.BEGINNINGS


def test_bots_join_and_do_not_accumulate(make):
    env = make("doom:full_deathmatch?players=1&bots=3&measurements=PLAYER_COUNT&frames=40")
    env.reset(seed=0)
    for _ in range(2):
        while env.agents:
            observations, _, _, _, infos = random_step(env, np.random.default_rng(0))
        assert observations["player_0"]["measurements"] == [4.0]
        env.reset()
    assert infos["player_0"]["win"] in (0.0, 0.5, 1.0)


@pytest.mark.parametrize(
    ("scores", "wins"),
    [
        ([3, 1], [1.0, 0.0]),
        ([2, 2], [0.5, 0.5]),
        ([-1, 0], [0.0, 1.0]),
        ([5, 1, 5], [0.5, 0.0]),
        ([1, 4, 6], [0.0, 0.0]),
    ],
)
def test_who_wins(make, scores, wins):
    """Scores of bots follow those of the players."""
    env = make("doom:duel")
    env._ask = lambda command, arguments=None: [scores]
    env._views = [type("View", (), {"variables": np.arange(40.0)})] * 2
    assert [info["win"] for info in env._outcomes().values()] == wins


def shaped(**changes):
    """Game variables of a player with a pistol, but for `changes`."""
    values = {"HEALTH": 100.0, "SELECTED_WEAPON": 2.0, "SELECTED_WEAPON_AMMO": 50.0, "WEAPON2": 1.0} | changes
    return np.array([values.get(name, 0.0) for name in doom_rewards.VARIABLES])


def rewards_of(*states, weights=doom_rewards.WEIGHTS):
    shaping = doom_rewards.Shaping()
    shaping.begin(states[0])
    return [shaping.reward(state, weights) for state in states[1:]]


def test_what_a_match_rewards():
    assert rewards_of(shaped(), shaped(FRAGCOUNT=1)) == pytest.approx([1.0])
    assert rewards_of(shaped(FRAGCOUNT=1), shaped()) == pytest.approx([-0.001])
    assert rewards_of(shaped(), shaped(HEALTH=40), shaped(HEALTH=65)) == pytest.approx([-0.6, 0.25])
    assert rewards_of(shaped(), shaped(ARMOR=100), shaped(ARMOR=90)) == pytest.approx([0.5, -0.01])
    assert rewards_of(shaped(), shaped(DAMAGECOUNT=20, HITCOUNT=1)) == pytest.approx([0.2])
    assert rewards_of(shaped(), shaped(DAMAGECOUNT=900)) == pytest.approx([2.0]), "200 points are the most"
    assert rewards_of(shaped(), shaped(WEAPON7=1, AMMO7=40)) == pytest.approx([0.02 * 10 + 0.0002 * 10 * 40])
    assert rewards_of(shaped(AMMO3=8), shaped(AMMO3=7)) == pytest.approx([-0.0001 * 5])


def test_a_respawn_rewards_nothing_but_the_frag_of_that_step():
    dead = shaped(HEALTH=-30, DEAD=1, DEATHCOUNT=1, WEAPON5=1)
    respawned = shaped(DEATHCOUNT=1, FRAGCOUNT=1)
    assert rewards_of(shaped(WEAPON5=1), dead, respawned) == pytest.approx([-1.0 - 100 * 0.01, 1.0])


def test_a_kept_weapon_is_rewarded_by_its_own_worth():
    """Sample Factory's code gives the worth of the last weapon slot to all."""
    bonus = dict.fromkeys(doom_rewards.WEIGHTS, 0.0) | {"weapon_kept": 1.0}
    pistol, plasma = shaped(), shaped(SELECTED_WEAPON=6.0)
    rewards = rewards_of(pistol, *[pistol] * 6, *[plasma] * 5, shaped(SELECTED_WEAPON_AMMO=0), weights=bonus)
    assert rewards == [0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 10, 0]
    none, dead = shaped(SELECTED_WEAPON=-1.0), shaped(DEAD=1)
    assert rewards_of(none, *[none] * 6, *[dead] * 6, weights=bonus) == [0] * 12


def test_reward_weights_of_all_and_of_one(make):
    env = make("doom:duel")
    before, after = shaped(), shaped(FRAGCOUNT=1)
    view = lambda values: type("View", (), {"variables": values, "frame": 0, "screen": None})  # noqa: E731
    env._ask = lambda command, arguments=None: [view(after)] * 2
    for shaping in env._shaping:
        shaping.begin(before)
    env.set_reward_weights("player_1", doom_rewards.WEIGHTS | {"frag": 7.0})
    env.reward_weights["frag"] = 3.0
    actions = dict.fromkeys(env.possible_agents, np.zeros(7, int))
    assert env.step(actions)[1] == pytest.approx({"player_0": 3.0, "player_1": 7.0})
    with pytest.raises(UsageError, match="agent 'player_2' does not exist; allowed: player_0, player_1"):
        env.set_reward_weights("player_2", doom_rewards.WEIGHTS)
    with pytest.raises(UsageError, match="'frags' does not exist, did you mean 'frag'"):
        env.set_reward_weights("player_0", doom_rewards.WEIGHTS | {"frags": 1.0})
    with pytest.raises(UsageError, match="'frag' is nan"):
        env.set_reward_weights("player_0", doom_rewards.WEIGHTS | {"frag": float("nan")})
    with pytest.raises(UsageError, match="armor_lost, weapon.* missing"):
        env.set_reward_weights("player_0", {"frag": 1.0})


@pytest.mark.parametrize("fault", ["killed engine", "stopped engine", "killed process"])
def test_nothing_is_left_of_a_match_that_fails(make, fault):
    env = make("doom:duel")
    env.reset(seed=1)
    commands = engines()
    (port,) = host_ports(commands.values())
    assert len(shared_memory(commands.values())) == 6 and not is_free(port) and not is_free(port + 1)
    victim = env._match._process.pid if fault == "killed process" else max(commands)
    os.kill(victim, signal.SIGSTOP if fault == "stopped engine" else signal.SIGKILL)
    env._match._timeout = 1.0 if fault == "stopped engine" else 30.0
    cause = {"killed engine": "instance crash", "stopped engine": "within 1 s", "killed process": "has ended"}[fault]
    with pytest.raises(MatchFailed, match=cause):  # noqa: PT012 - an input that was sent before may be enough for a step
        for _ in range(3):
            random_step(env, np.random.default_rng(0))
    assert not engines() and not shared_memory(commands.values())
    assert is_free(port) and is_free(port + 1)
    with pytest.raises(RuntimeError, match="no match is running; call reset first"):
        env.step(dict.fromkeys(env.possible_agents, np.zeros(7, int)))


def test_a_match_starts_at_another_port_if_the_first_is_taken(make, monkeypatch, caplog):
    thieves, ended = [], {}

    class Stolen(ReservedPort):
        def __init__(self):
            super().__init__()
            if not thieves:
                thieves.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
                thieves[0].bind(("", self.number))

    def end_engines(engines):
        ended.update(engines)
        doom_engine.end_engines(engines)

    monkeypatch.setattr(doom_match_process, "ReservedPort", Stolen)
    monkeypatch.setattr(doom_match_process, "end_engines", end_engines)
    env = make("doom:duel")
    env.reset(seed=1)
    thieves[0].close()
    assert "Address already in use" in caplog.text and "starting it again (2 of 3)" in caplog.text
    assert len(ended) == 2 and len(engines()) == 2
    assert not any(file.endswith(name) for file in os.listdir("/dev/shm") for name in ended.values())


def test_reserved_ports_differ_until_they_are_released():
    ports = [ReservedPort() for _ in range(50)]
    assert len({port.number for port in ports}) == 50
    assert all(is_free(port.number) and not is_free(port.number + 1) for port in ports)
    for port in ports:
        port.release()
    assert is_free(ports[0].number + 1)


def test_a_killed_program_leaves_no_match_behind():
    code = (
        "from paceline.envs import resolve; env = resolve('doom:duel').make(0); env.reset(seed=1); "
        "print(0, flush=True); import time; time.sleep(60)"
    )
    program = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert program.stdout.readline() == b"0\n"
    commands = engines(program.pid)
    assert len(commands) == 2 and len(shared_memory(commands.values())) == 6
    program.kill()
    program.communicate()
    deadline = time.monotonic() + 60
    while (any(map(is_alive, commands)) or shared_memory(commands.values())) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(is_alive, commands)) and not shared_memory(commands.values())


def is_alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize(("kind", "matches"), [("serial", 1), ("process", 2)])
def test_a_pool_replaces_a_match_whose_engine_dies(kind, matches):
    """Two matches, of four engines, start at the same time in two processes."""
    config = PoolConfig(num_envs=matches, workers=matches, nice=0, on_error="restart")
    with POOLS[kind](resolve("doom:duel"), config, seed=1) as pool:
        lost = []
        for turn in range(6):
            batch = pool.recv(min_slots=None)
            lost.append(int(batch.lost.sum()))
            if turn == 2:
                ports = host_ports(engines().values())
                assert len(ports) == matches and pool.restarts == 0
                os.kill(max(engines()), signal.SIGKILL)
            pool.send(np.zeros((2 * matches, 7), np.int64), batch.slots)
        assert sorted(lost) == [0, 0, 0, 0, 0, 2]
        assert pool.restarts == 1 and len(engines()) == 2 * matches
    assert not engines()


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("doom:duel?players=1", "has 1 players and 0 bots; allowed: 2 to 16 together"),
        ("doom:full_deathmatch?players=9&bots=8", "allowed: 2 to 16 together"),
        ("doom:duel?frames=0", "allowed: an integer of at least 1"),
        ("doom:duel?timeout_seconds=0", "allowed: a number of at least 0.1"),
        ("doom:duel?measurements=HELTH", "did you mean 'HEALTH'"),
        ("doom:duel?resolution=9000x10", "allowed: at most 1920x1080"),
        ("doom:duel?actions=discrete", "option 'actions' .* allowed: players, bots, frames"),
    ],
)
def test_refuses(env_id, message):
    with pytest.raises(UsageError, match=message):
        resolve(env_id)


def test_engine_output_in_errors_has_no_progress(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(
        b"Contacting host: Contacting host: /Contacting host: -BindToPort: Address already in use\nGo     \n"
        b"Waiting for players: .. [ 1/ 2]Got connect from node 1.   \nContacting host: \\Timeout, aborted.\nReceived"
    )
    with path.open("rb") as file:
        words = doom_match_process._last_words(file)
    assert words == "BindToPort: Address already in use | Timeout, aborted."
