"""What the planner predicts beside what the papers report and what was measured here."""
