"""`paceline export`: write the policy of a run to one file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Export:
    """Write the deterministic policy of a run to one file, for use elsewhere, and check that it gives the same
    actions."""

    run_folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The folder of a run."""
    format: Literal["onnx", "torchscript"]
    """The file format. Inputs are the observations and, for a recurrent policy, its state. Outputs are the actions, the
    value and the new state."""
    checkpoint: str = "latest"
    """The checkpoint: latest, best or step_N."""
    policy: Annotated[str | None, tyro.conf.arg(metavar="K")] = None
    """The policy, in a run with several: its number, best (the default), or K@STEP for a past self."""
    output: Path | None = None
    """The file to write. None: policy.onnx or policy.pt in the run folder."""
    trust: bool = False
    """Run the code that the run folder names, even if another user wrote it (see SECURITY.md)."""

    def run(self) -> None:
        from paceline.export import export

        done = export(
            self.run_folder,
            self.format,
            checkpoint=self.checkpoint,
            policy=self.policy,
            output=self.output,
            trust=self.trust,
        )
        table = Table("", "name", "type", "shape", box=None, header_style="bold", pad_edge=False)
        for side, ports in (("input", done.inputs), ("output", done.outputs)):
            for port in ports:
                table.add_row(side, port.name, port.dtype, str(["batch", *port.shape]))
        Console().print(table, markup=False)
        print(f"policy {done.policy} of {done.checkpoint} is in {done.path}")
        if done.verified_with is not None:
            print(f"verified: {done.verified_with} gives the same outputs as the policy")
        else:
            print("NOT verified: neither onnxruntime nor ONNX's reference evaluator is installed")
