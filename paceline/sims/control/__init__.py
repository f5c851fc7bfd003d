"""Tasks of continuous control in MuJoCo, after the experiments of D4PG.

`import paceline.sims.control` registers them in Gymnasium: `gymnasium.make("paceline/Hand-v0", task="catch")` and
`gymnasium.make("paceline/Parkour-v0", body="walker")`.
"""

import gymnasium

gymnasium.register("paceline/Hand-v0", entry_point="paceline.sims.control.hand.env:HandEnv")
gymnasium.register("paceline/Parkour-v0", entry_point="paceline.sims.control.parkour.env:ParkourEnv")
