"""Ranks: processes that train one policy together."""
