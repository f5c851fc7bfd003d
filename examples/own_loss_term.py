"""Trains with a term of your own in the PPO loss: a penalty on change of the policy.

python examples/own_loss_term.py [STEPS]
paceline train cartpole --ppo.term ./examples/own_loss_term.py:change_of_policy --ppo.term-coef 0.5
"""

import sys

import paceline as pl


def change_of_policy(rows):
    """[M]: an estimate of the KL divergence for each row. `paceline.learner.loss_rows.LossRows` lists all inputs."""
    log_ratio = rows.log_prob - rows.old_log_prob
    return log_ratio.exp() - 1 - log_ratio


if __name__ == "__main__":
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    run = pl.train("cartpole", steps=steps, ppo={"term": change_of_policy, "term_coef": 0.5})
    print(f"term_loss {run.metrics['term_loss'][-1]:.2g}, return {run.metrics['episode_return'][-1]:.1f}")
