"""Many runs: arms times seeds, and what their differences say."""
