"""The same houses, robot and tasks in MuJoCo: masses, forces and contacts. A step takes as long as its contacts need.

config      the options, without MuJoCo
family      the environment ids: `rearrange_mujoco:pick`
robot       the robot as a part of a model
model       the model of a house, with the robot and the objects of an episode
suction     what the cup holds, as constraints
house       `HouseDynamics`: one house in motion
camera      depth images by MuJoCo's renderer, or by our own
env         the Gymnasium environment
"""
