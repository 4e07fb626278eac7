"""How training sees data: the contract, one client at a time or a cohort stacked, DP-SGD and totals."""
