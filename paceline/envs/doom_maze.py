"""Doom maps made by code: mazes with monsters, medical kits and ammunition that come back.

A map is a WAD file with the maze as text (UDMF), the actors as text (DECORATE) and the level's settings as text
(MAPINFO). The engine builds the maze's nodes itself, so no compiler is needed. Monsters and textures are those of
ViZDoom's Freedoom.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass

CELL = 128
"""Side of a square of the maze, in map units. A player is 32 wide."""
HEIGHT = 128

MONSTER_SPOT, MEDIKIT, AMMO = 15001, 15002, 15003
PLAYER_STARTS = (1, 2, 3, 4, 4001, 4002, 4003, 4004)
"""Kinds of things, as the numbers of the map and of the actors. A player starts at any of these places."""

ACTORS = """
ACTOR MazePlayer : DoomPlayer
{
  Player.DisplayName "MazePlayer"
  Player.StartItem "Chaingun"
  Player.StartItem "Clip", 50
}

// Tries to spawn a monster until no player sees the place and there is room.
ACTOR MonsterSpot 15001
{
  +NOBLOCKMAP
  +NOGRAVITY
  States
  {
  Spawn:
    TNT1 A random(17, 175)
    TNT1 A 0 A_CheckSight("Birth")
    Loop
  Birth:
    TNT1 A 0 A_Jump(192, "Gunner", "Imp", "Demon")
    TNT1 A 1 A_SpawnItemEx("MazeZombie", 0, 0, 0, 0, 0, 0, random(0, 359), SXF_SETMASTER)
    Goto Spawn
  Gunner:
    TNT1 A 1 A_SpawnItemEx("MazeGunner", 0, 0, 0, 0, 0, 0, random(0, 359), SXF_SETMASTER)
    Goto Spawn
  Imp:
    TNT1 A 1 A_SpawnItemEx("MazeImp", 0, 0, 0, 0, 0, 0, random(0, 359), SXF_SETMASTER)
    Goto Spawn
  Demon:
    TNT1 A 1 A_SpawnItemEx("MazeDemon", 0, 0, 0, 0, 0, 0, random(0, 359), SXF_SETMASTER)
    Goto Spawn
  }
}
"""

MONSTER = """
// Removes its spot when it is born, and leaves another one where it dies.
ACTOR {name} : {parent}
{{
  DropItem "None"
  States
  {{
  Spawn:
    {sprite} A 0
    {sprite} A 1 A_RemoveMaster(RMVF_EVERYTHING)
    Goto Super::Spawn
  Death:
    {sprite} A 0 A_SpawnItemEx("MonsterSpot", 0, 0, 0, 0, 0, 0, 0, SXF_NOCHECKPOSITION)
    Goto Super::Death
  XDeath:
    {sprite} A 0 A_SpawnItemEx("MonsterSpot", 0, 0, 0, 0, 0, 0, 0, SXF_NOCHECKPOSITION)
    Goto Super::Death
  }}
}}
"""

ITEM = """
ACTOR {name} : {parent} {number}
{{
  +INVENTORY.ALWAYSRESPAWN
  Inventory.Amount {amount}
  Inventory.RespawnTics {respawn}
}}
"""

MONSTERS = {
    "MazeZombie": ("ZombieMan", "POSS"),
    "MazeGunner": ("ShotgunGuy", "SPOS"),
    "MazeImp": ("DoomImp", "TROO"),
    "MazeDemon": ("Demon", "SARG"),
}
ITEMS = {"MazeMedikit": ("Medikit", MEDIKIT, 25), "MazeAmmo": ("Clip", AMMO, 20)}

LEVEL = """
gameinfo { playerclasses = "MazePlayer" }
map MAP01 "Maze" { randomplayerstarts }
"""


@dataclass(frozen=True, kw_only=True)
class Maze:
    """What distinguishes one maze from another."""

    rooms: int
    """Rooms along each side. Corridors connect neighbours."""
    open_share: float
    """Share of the walls between neighbours that are missing, besides those that a maze needs to be connected."""
    monsters: int
    medikits: int
    ammo: int
    respawn: int
    """Frames until a taken item comes back."""
    walls: tuple[str, ...]
    """Textures, one for each area of the maze."""
    seed: int = 0


def wad(maze: Maze) -> bytes:
    """The WAD file of a maze. The same maze gives the same bytes."""
    actors = ACTORS
    for name, (parent, sprite) in MONSTERS.items():
        actors += MONSTER.format(name=name, parent=parent, sprite=sprite)
    for name, (parent, number, amount) in ITEMS.items():
        actors += ITEM.format(name=name, parent=parent, number=number, amount=amount, respawn=maze.respawn)
    lumps = [("DECORATE", actors), ("MAPINFO", LEVEL), ("MAP01", ""), ("TEXTMAP", _textmap(maze)), ("ENDMAP", "")]
    data, directory = b"", b""
    for name, text in lumps:
        directory += struct.pack("<ii8s", 12 + len(data), len(text), name.encode())
        data += text.encode()
    return struct.pack("<4sii", b"PWAD", len(lumps), 12 + len(data)) + data + directory


def floor_plan(maze: Maze) -> list[list[bool]]:
    """Which squares are floor, [row][column]. Rooms are at odd rows and columns. All rooms are connected."""
    rng = random.Random(maze.seed)
    size = 2 * maze.rooms + 1
    floor = [[row % 2 == 1 and column % 2 == 1 for column in range(size)] for row in range(size)]
    seen, stack = {(1, 1)}, [(1, 1)]
    while stack:
        row, column = stack[-1]
        nexts = [(row - 2, column), (row + 2, column), (row, column - 2), (row, column + 2)]
        nexts = [(y, x) for y, x in nexts if 0 < y < size and 0 < x < size and (y, x) not in seen]
        if not nexts:
            stack.pop()
            continue
        y, x = rng.choice(nexts)
        floor[(row + y) // 2][(column + x) // 2] = True
        seen.add((y, x))
        stack.append((y, x))
    for row in range(1, size - 1):
        for column in range(1, size - 1):
            if (row + column) % 2 == 1 and rng.random() < maze.open_share:
                floor[row][column] = True
    return floor


def _textmap(maze: Maze) -> str:
    floor = floor_plan(maze)
    sector = (
        f'sector {{ heightfloor = 0; heightceiling = {HEIGHT}; texturefloor = "FLOOR0_1"; textureceiling = "CEIL5_1"; '
        "lightlevel = 208; }"
    )
    return "\n".join(['namespace = "zdoom";', *_walls(maze, floor), sector, *_things(maze, floor)]) + "\n"


def _walls(maze: Maze, floor: list[list[bool]]) -> list[str]:
    """A one-sided line at every border between floor and rock, with the floor on its right."""
    corners: dict[tuple[int, int], int] = {}
    lines: list[str] = []
    sides: list[str] = []
    size, areas = len(floor), round(len(maze.walls) ** 0.5)
    squares = [(row, column) for row in range(size) for column in range(size) if floor[row][column]]
    for row, column in squares:
        texture = maze.walls[row * areas // size * areas + column * areas // size]
        left, right, bottom, top = column, column + 1, row, row + 1
        for (y, x), start, end in [
            ((row + 1, column), (left, top), (right, top)),
            ((row, column + 1), (right, top), (right, bottom)),
            ((row - 1, column), (right, bottom), (left, bottom)),
            ((row, column - 1), (left, bottom), (left, top)),
        ]:
            if not floor[y][x]:
                v1, v2 = (corners.setdefault(corner, len(corners)) for corner in (start, end))
                lines.append(f"linedef {{ v1 = {v1}; v2 = {v2}; sidefront = {len(sides)}; blocking = true; }}")
                sides.append(f'sidedef {{ sector = 0; texturemiddle = "{texture}"; }}')
    return [f"vertex {{ x = {x * CELL}.0; y = {y * CELL}.0; }}" for x, y in corners] + lines + sides


def _things(maze: Maze, floor: list[list[bool]]) -> list[str]:
    """Players, monsters and items, each in a square of its own."""
    rng = random.Random(maze.seed + 1)
    squares = [(row, column) for row, line in enumerate(floor) for column, free in enumerate(line) if free]
    kinds = [*PLAYER_STARTS, *[MONSTER_SPOT] * maze.monsters, *[MEDIKIT] * maze.medikits, *[AMMO] * maze.ammo]
    flags = "".join(f" skill{level} = true;" for level in range(1, 6)) + " single = true;"
    return [
        f"thing {{ x = {(column + 0.5) * CELL}; y = {(row + 0.5) * CELL}; angle = {rng.randrange(0, 360, 45)}; "
        f"type = {kind};{flags} }}"
        for kind, (row, column) in zip(kinds, rng.sample(squares, len(kinds)), strict=True)
    ]
