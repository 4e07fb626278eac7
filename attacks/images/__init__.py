"""What attacks on images share: priors, decoders, controls, and the result beside them."""
