"""A hand with 22 joints above a table, and what it can do with a cylinder: catch, pick up and orient, rotate."""
