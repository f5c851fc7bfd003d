"""Evaluation of trained policies: measures, reports and videos."""
