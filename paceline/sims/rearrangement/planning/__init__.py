"""Task plans: skills in a row solve a scenario (TP-SRL)."""
