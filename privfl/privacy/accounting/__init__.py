"""What a run has released, and what that costs: releases, ledger, accountants, statement."""
