"""privfl: federated learning whose privacy claims are computed, tested and attacked."""
