"""GPU streams: no work is recorded by accident."""

from __future__ import annotations

import pytest
import torch

from paceline.accel.cuda_graph import CudaGraph
from paceline.accel.cuda_streams import stream_for

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def test_every_role_has_its_own_stream_however_many_were_handed_out():
    device = torch.device("cuda", 0)
    streams = []
    for number in range(8):
        streams.append(stream_for(f"role {number}", device))
        for _ in range(31):  # PyTorch's next stream is the one of this role
            torch.cuda.Stream(device)
    assert len(set(streams)) == 8
    assert [stream_for(f"role {number}", device) for number in range(8)] == streams


def test_recording_is_never_on_the_stream_that_learns():
    device = torch.device("cuda", 0)
    learning, used = stream_for("learning", device), set()

    def note() -> torch.Tensor:
        used.add(torch.cuda.current_stream())
        return torch.zeros(1, device=device)

    for _ in range(16):  # with their warm-up runs, more than there are streams
        graph = CudaGraph(note)
        for _ in range(4):
            graph.run()
    assert len(used) == 1 and learning not in used
    with torch.cuda.stream(learning):
        CudaGraph(note).run()
    assert len(used) == 2 and learning not in used
