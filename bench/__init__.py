"""Benchmarks beside peers: each ends with one line of ratios against bars, and fails where one falls short."""
