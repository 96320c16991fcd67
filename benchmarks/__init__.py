"""Benchmarks: one table of ratios, each taken beside something a user would pick instead, in the same run."""
