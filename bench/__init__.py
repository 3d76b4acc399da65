"""Benchmarks against peers: each ends with one line of ratios and their minimums, and fails if one falls short."""
