"""What an upload passes: its fields, the chain of mechanisms, and what each release costs."""
