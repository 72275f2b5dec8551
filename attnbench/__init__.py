"""Fair comparison of attention mechanisms."""
