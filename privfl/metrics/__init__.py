"""Figures of merit: accuracy, calibration, fairness between clients, personal and generative models."""
