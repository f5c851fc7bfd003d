"""Trains with an auxiliary loss of your own: predict the next features from the memory and the action.

python examples/own_auxiliary_loss.py [STEPS]
paceline train memory --ppo.auxiliary.kind ./examples/own_auxiliary_loss.py:NextFeatures
"""

import sys

import torch
from torch import nn

import paceline as pl


class NextFeatures(nn.Module):
    """`paceline.learner.own_losses.AuxiliaryLoss` says what an auxiliary loss needs. Its weights are trained, too."""

    def __init__(self, num_features, num_belief, num_actions, config):
        super().__init__()
        self.predict = nn.Sequential(nn.Linear(num_belief + num_actions, 64), nn.ReLU(), nn.Linear(64, num_features))

    def forward(self, rows):
        following, continues = rows.following()  # the next row of the same episode, and whether there is one
        predicted = self.predict(torch.cat([rows.belief, rows.action_features], 1))
        error = (predicted - rows.features[following].detach()).square().mean(1)
        loss = rows.mean(torch.where(continues, error, 0.0))  # rows that do not count are left out
        return {"loss": loss, "pairs": continues.float().mean()}  # in the metrics: auxiliary_loss, auxiliary_pairs


if __name__ == "__main__":
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    run = pl.train("memory", steps=steps, ppo={"auxiliary": {"kind": NextFeatures, "weight": 0.5}})
    losses = run.metrics["auxiliary_loss"]
    print(f"auxiliary_loss from {losses[0]:.3g} to {losses[-1]:.3g} in {run.step} steps")
