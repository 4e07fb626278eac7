"""Many runs: grids, sweeps, figures and the report."""
