"""Settings of populations. Free of PyTorch: the command line reads them."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.checks import require_above_0, require_at_least, require_share
from paceline.errors import UsageError
from paceline.own_code import check_choice, is_importable, write_paths

MAPPINGS = ("random", "agent")


@dataclass(frozen=True, kw_only=True)
class PopulationConfig:
    """The policies of one run."""

    policies: int = 1
    """Policies that the run trains. Each has a learner of its own."""
    mapping: str = "random"
    """Which policy plays which agent, decided at the start of every match. random: each agent gets any policy, as in
    Sample Factory. agent: agent number modulo number of policies. package.module:function: a function of your own."""

    spread: bool = False
    """With several ranks, each rank trains its own share of the policies. Otherwise every rank trains all policies, and
    gradients are averaged."""

    def __post_init__(self) -> None:
        require_at_least(self, "population", 1, "policies")
        write_paths(self, "mapping")
        check_choice("population.mapping", self.mapping, MAPPINGS, "function")
        if self.spread and self.policies == 1:
            raise UsageError("population.spread needs several policies; allowed: --population.policies 2 or more")
        if self.spread and self.mapping not in MAPPINGS:
            raise UsageError(
                f"population.spread cannot have population.mapping {self.mapping}: a function does not know which "
                f"policies a rank trains; allowed: {', '.join(MAPPINGS)}"
            )


@dataclass(frozen=True, kw_only=True)
class PBTConfig:
    """Population-based training. The defaults are those of Sample Factory's paper, appendix A.3.1."""

    every: int | None = None
    """Steps of the whole run between two rounds. The paper has 5,000,000 frames. None: no population-based training."""
    start: int = 0
    """No round before this step of the run."""
    mutated_share: float = 0.7
    """Share of the members, from the worst up, whose hyper-parameters mutate. The best member never mutates."""
    mutation_rate: float = 0.15
    """Probability that a hyper-parameter of such a member mutates in a round."""
    factor: float = 1.2
    """A mutation multiplies or divides by this."""
    spread: float = 1.0
    """The members begin with hyper-parameters between 1 / spread and spread times the configured ones, drawn
    log-uniformly. In the paper all begin alike, and only mutations move them. 1: as in the paper."""
    replaced_share: float = 0.3
    """Share of the members, from the worst up, that take weights and hyper-parameters of one of the best. The same
    share counts as best. At least one member of two is replaced."""
    min_gap: float = 0.0
    """A member is replaced only if the objective of its donor is higher, and by at least this much. The paper has 0.35
    in duels, where the objective is the win rate."""
    objective: str = "return"
    """What members are compared by, as the mean over their latest episodes: return, length, or a measure of the
    environment such as success. Higher is better."""
    tuned: tuple[str, ...] = ()
    """Hyper-parameters that mutate, by their paths, for example optimizer.learning_rate. Empty: the paper's, which are
    the learning rate, the entropy coefficient and Adam's beta1, and the weights of the environment's reward, if it has
    any (not in populations of runs). Under d4pg both learning rates and the noise."""

    def __post_init__(self) -> None:
        require_at_least(self, "pbt", 1, "every")
        require_at_least(self, "pbt", 0, "start", "min_gap")
        require_share(self, "pbt", "mutated_share", "mutation_rate", "replaced_share")
        if not 1 < self.factor < float("inf"):
            raise UsageError(f"pbt.factor must be above 1 and finite, got {self.factor}")
        if not 1 <= self.spread < float("inf"):
            raise UsageError(f"pbt.spread must be at least 1 and finite, got {self.spread}")
        if not self.min_gap < float("inf"):
            raise UsageError(f"pbt.min_gap must be a finite number, got {self.min_gap}")
        if not self.objective:
            raise UsageError("pbt.objective is empty; allowed: return, length, or a measure of the environment")

    def next_round(self, step: int) -> int | None:
        """The step of the first round after `step`: a multiple of `every`, not before `start`. None: no more rounds."""
        if self.every is None:
            return None
        return max(step // self.every + 1, -(-self.start // self.every)) * self.every


@dataclass(frozen=True, kw_only=True)
class LeagueConfig:
    """Opponents of self-play that do not learn: past selves, policies of other runs, and scripted ones."""

    past_share: float = 0.0
    """Share of the matches in which the opponents are past selves."""
    every: int = 1_000_000
    """Steps of the whole run between two snapshots of a policy."""
    keep: int = 16
    """Snapshots to keep of a policy. The first and the latest stay, and those between stay spread over training."""
    seats: int = 2
    """Past selves that are loaded at the same time. With a single one, fewer matches than past_share are against past
    selves: between two of them, all matches against the first have to end."""
    prioritized: bool = False
    """Draw past selves by (1 - win rate)^2, so that those that still win are met more often. Otherwise all are equally
    likely."""
    opponents: tuple[str, ...] = ()
    """Fixed opponents: folders of other runs, or scripted ones as package.module:Class."""
    opponent_share: float = 0.0
    """Share of the matches in which the opponents are fixed ones."""

    @property
    def is_used(self) -> bool:
        """Whether opponents that do not learn take part."""
        return self.past_share > 0 or self.opponent_share > 0

    def __post_init__(self) -> None:
        write_paths(self, "opponents")
        require_share(self, "league", "past_share", "opponent_share")
        require_above_0(self, "league", "every")
        require_at_least(self, "league", 2, "keep")
        require_at_least(self, "league", 1, "seats")
        if self.past_share + self.opponent_share > 1:
            raise UsageError(
                f"league.past_share {self.past_share} and league.opponent_share {self.opponent_share} must not add up "
                "to more than 1"
            )
        if self.opponents and self.opponent_share == 0:
            raise UsageError("league.opponents has no effect without league.opponent_share above 0")
        if self.opponent_share > 0 and not self.opponents:
            raise UsageError("league.opponent_share needs league.opponents: run folders, or package.module:Class")


def named_code(population: PopulationConfig, league: LeagueConfig) -> dict[str, str]:
    """Options that name a function or class of the user's own, and those names."""
    options = {"population.mapping": population.mapping}
    options |= {f"league.opponents[{number}]": name for number, name in enumerate(league.opponents)}
    return {option: name for option, name in options.items() if is_importable(name) and not _is_own(name)}


def _is_own(name: str) -> bool:
    return name.startswith("paceline.")
