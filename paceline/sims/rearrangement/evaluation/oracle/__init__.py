"""The oracle: a scripted controller that knows the state of the simulator, and solves the skills without learning.

phases     what a phase of a script sees and does
driving    phases of the base
reaching   phases of the arm: take an object, and put it down
handles    phases for doors and drawers
stands     where the base stands for a target
agent      `RobotOracle`: a script of phases for every task
"""
