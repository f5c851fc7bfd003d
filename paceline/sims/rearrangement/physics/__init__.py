"""Contact without dynamics: distances, doors and drawers, motion up to the first contact, suction, and falls."""
