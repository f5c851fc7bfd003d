"""On a GPU: kernels equal the tensor code, streams equal those of the host, and a step can be captured."""

import pytest
import torch

from paceline.sims.navigation.rendering import render
from paceline.sims.navigation.scenes import geodesic
from paceline.sims.navigation.simulator import Navigation
from paceline.sims.navigation.tasks.table import TASKS

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def places(bank, count, device="cuda"):
    rng = torch.Generator().manual_seed(0)
    scenes = torch.randint(bank.num_scenes, (count,), generator=rng)
    episodes = torch.randint(bank.num_episodes, (count,), generator=rng)
    return scenes.to(device), episodes.to(device)


@pytest.mark.parametrize("side", [8, 20, 64, 128])
@pytest.mark.parametrize("surfaces", [False, True])
def test_the_kernel_sees_what_the_tensors_see(side, surfaces, small_bank, full_bank):
    from paceline.sims.navigation.rendering import render_triton

    for bank in (small_bank.to("cuda"), full_bank.to("cuda")):
        scenes, episodes = places(bank, 16)
        poses, camera = bank.episodes[scenes, episodes, :3], render.Camera(side, "cuda")
        want = render.trace(bank, camera, scenes, poses, surfaces)
        got = render_triton.trace(bank, camera, scenes, poses, surfaces)
        # At the edges of things, rounding decides which of two is seen.
        assert ((got.depth - want.depth).abs() < 1e-4).float().mean() > 0.999
        if surfaces:
            assert (got.surfaces == want.surfaces).float().mean() > 0.995
        only = torch.arange(16, device="cuda") % 3 == 0
        again = render_triton.trace(bank, camera, scenes.flip(0), poses.flip(0), surfaces, only=only, otherwise=got)
        assert torch.equal(again.depth[~only], got.depth[~only])
        assert torch.equal(again.depth[only], got.depth.flip(0)[only])


def test_the_kernel_knows_the_distances(small_bank, full_bank):
    from paceline.sims.navigation.scenes import geodesic_triton

    for bank in (small_bank.to("cuda"), full_bank.to("cuda")):
        scenes, episodes = places(bank, 500)
        rows, at = bank.episodes[scenes, episodes], bank.episode_goals[scenes, episodes]
        want = geodesic.query(
            rows[:, :2], bank.nodes[scenes], bank.node_distances[scenes, at], rows[:, None, 3:5], bank.sight[scenes]
        )
        got = geodesic_triton.query(bank, scenes, bank.node_distances, at, rows[:, :2], rows[:, None, 3:5])
        torch.testing.assert_close(got, want, rtol=0, atol=1e-4)
        torch.testing.assert_close(got, rows[:, 5], rtol=0, atol=1e-4)


@pytest.mark.parametrize("sensors", ["depth", "depth+rgb"])
@pytest.mark.parametrize("task", TASKS)
def test_streams_equal_those_of_the_host(task, sensors, small_bank):
    config = TASKS[task].config(resolution=16, sensors=sensors, max_episode_steps=20)
    host, device = Navigation(32, "cpu", config, bank=small_bank), Navigation(32, "cuda", config, bank=small_bank)
    first, same = host.reset(4), device.reset(4)
    for name, values in first.items():
        near = (same[name].cpu().float() - values.float()).abs() < (1e-3 if values.is_floating_point() else 2)
        assert near.float().mean() > 0.99, name
    rng = torch.Generator().manual_seed(0)
    for _ in range(60):
        actions = torch.multinomial(torch.tensor([0.03, 0.6, 0.2, 0.17]), 32, True, generator=rng)
        one, other = host.step(actions), device.step(actions.cuda())
        assert torch.equal(host._rows, device._rows.cpu())
        # Paths may part where rounding decides on a collision, but not many.
        close = (one.reward - other.reward.cpu()).abs() < 1e-3
        assert close.float().mean() > 0.9
        assert torch.equal(one.truncated, other.truncated.cpu())
        near = (one.obs["depth"] - other.obs["depth"].cpu()).abs() < 1e-3
        assert near.float().mean() > 0.9


@pytest.mark.parametrize("sensors", ["depth", "depth+rgb", "blind"])
@pytest.mark.parametrize("task", TASKS)
def test_a_step_can_be_captured(task, sensors, small_bank):
    config = TASKS[task].config(resolution=16, sensors=sensors, max_episode_steps=7, image_noise=0.01)
    eager = Navigation(64, "cuda", config, bank=small_bank.to("cuda"))
    captured = Navigation(64, "cuda", config, bank=small_bank.to("cuda"))
    actions = torch.ones(64, dtype=torch.long, device="cuda")
    captured.reset(0)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            captured.step(actions)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = captured.step(actions)
    captured.reset(9)
    eager.reset(9)
    for turn in range(30):
        actions.copy_((torch.arange(64, device="cuda") * 7 + turn) % 4)
        want = eager.step(actions)
        graph.replay()
        torch.testing.assert_close(replayed.reward, want.reward)
        for name, values in eager.last_measures.items():
            torch.testing.assert_close(captured.last_measures[name], values)
        assert torch.equal(replayed.terminated, want.terminated)
        for name, values in want.obs.items():
            torch.testing.assert_close(replayed.obs[name], values)


def test_objects_in_view_equal_those_of_the_host(full_bank):
    config = TASKS["objectnav"].config(tier="full", sensors="blind")
    host, device = (Navigation(64, kind, config, bank=full_bank) for kind in ("cpu", "cuda"))
    host.reset(2)
    device.reset(2)
    everyone = torch.ones(64, dtype=torch.bool)
    want = host.task.in_view(host.poses, everyone)
    got = device.task.in_view(device.poses, everyone.cuda()).cpu()
    assert (got == want).float().mean() > 0.999 and want.any()
    one = torch.arange(64) % 2 == 0
    some = device.task.in_view(device.poses, one.cuda()).cpu()
    assert torch.equal(some[one], got[one]) and not some[~one].any()
    distances = device.task.distances(device.columns, device.poses[:, :2]).cpu()
    torch.testing.assert_close(distances, host.task.distances(host.columns, host.poses[:, :2]), rtol=0, atol=1e-3)
