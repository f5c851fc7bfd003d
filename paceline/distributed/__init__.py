"""Ranks that train one policy together."""
