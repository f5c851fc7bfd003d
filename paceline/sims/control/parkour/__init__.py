"""Bodies that run over obstacles: a planar walker and a humanoid, after section 4.3 of D4PG."""
