"""Per-sample gradients, clipped: by layer rules, by vmap, or by Opacus."""
