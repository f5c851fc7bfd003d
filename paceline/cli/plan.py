"""`paceline plan`: check floor plans and draw them, or write one to start from."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from paceline.errors import UsageError
from paceline.files import cannot_write
from paceline.sims.navigation.plans import plan as floor_plan
from paceline.sims.navigation.plans.check import check_file, free_area
from paceline.sims.navigation.plans.examples import plan_text
from paceline.sims.navigation.plans.reading import Problem, plan_files
from paceline.sims.navigation.rendering.maps import top_down
from paceline.sims.navigation.scenes.scene import Scene
from paceline.wording import counted

PICTURE_SIDE = 512


@dataclass(frozen=True)
class PlanCheck:
    """Check floor plans for navigation (docs/floor_plans.md). Prints a summary of each, or one line per problem."""

    plans: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="PLAN...")]
    """JSON files, or folders of them."""
    picture: Annotated[Path | None, tyro.conf.arg(metavar="FILE.png")] = None
    """Draw the map of the plan to this file, with its problems in red. Only for one plan."""

    def run(self) -> None:
        files = [file for plan in self.plans for file in plan_files(plan)]
        if not files:
            raise UsageError("no floor plan was given; allowed: one or more files or folders")
        if self.picture is not None:
            self._check_picture(self.picture, len(files))
        wrong = sum(not self._check(file) for file in files)
        if wrong:
            raise UsageError(f"{wrong} of {counted(len(files), 'floor plan')} cannot be used")

    def _check_picture(self, picture: Path, num_plans: int) -> None:
        if num_plans > 1:
            raise UsageError(f"--picture draws one plan, and {num_plans} were given")
        with _writing(picture):
            if picture.suffix != ".png" or not picture.parent.is_dir() or picture.is_dir():
                raise UsageError(f"--picture {picture} cannot be written; allowed: a .png file in a folder that exists")

    def _check(self, file: Path) -> bool:
        """Print what there is to say about one plan; returns whether it can be used."""
        checked = check_file(file)
        problems = list(checked.problems)
        if checked.plan is not None and checked.scene is not None and not problems:
            from paceline.sims.navigation.plans.bank import check_episodes

            problems = check_episodes(checked.scene)
            if not problems:
                print(f"{file}: {_summary(checked.plan, checked.scene)}")
        for problem in problems:
            print(f"{file}: {problem}")
        if self.picture is not None and checked.scene is not None:
            _draw(checked.scene, problems, self.picture)
        return not problems


@dataclass(frozen=True)
class PlanExport:
    """Write a floor plan to start from: an example, or a generated apartment."""

    what: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="PLAN")]
    """An example (studio or flat), or small:SEED or full:SEED for the apartment of a seed."""
    output: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE.json")]
    """The file to write."""

    def run(self) -> None:
        text = plan_text(self.what)
        with _writing(self.output):
            if self.output.exists():
                raise UsageError(f"{self.output} exists; allowed: a new file")
            if not self.output.parent.is_dir():
                raise UsageError(f"{self.output}: the folder {self.output.parent} does not exist")
            self.output.write_text(text)
        print(self.output)


Plan = (
    Annotated[PlanCheck, tyro.conf.subcommand("check", prefix_name=False)]
    | Annotated[PlanExport, tyro.conf.subcommand("export", prefix_name=False)]
)


def _summary(plan: floor_plan.Plan, scene: Scene) -> str:
    from paceline.sims.navigation.plans.bank import longest_path, tier_of

    names = ", ".join(room.name for room in plan.rooms if room.name)
    parts = [
        counted(len(plan.rooms), "room") + (f" ({names})" if names else ""),
        f"{free_area(scene):.1f} m² of free floor",
        counted(len(scene.obstacles), "obstacle"),
        f"longest shortest path {longest_path(scene):.1f} m",
        f"tier {tier_of([scene])}",
    ]
    return ", ".join(parts)


def _draw(scene: Scene, problems: Sequence[Problem], picture: Path) -> None:
    from PIL import Image

    marks = [area for problem in problems for area in problem.areas]
    with _writing(picture):
        Image.fromarray(top_down(scene, size=PICTURE_SIDE, marks=marks)).save(picture)


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """A context whose errors of the operating system become one line about `path`."""
    try:
        yield
    except OSError as error:
        raise cannot_write(path, error) from error
