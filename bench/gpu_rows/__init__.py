"""The rows of bench/gpu.py: one module per question, each with functions from a Scale to figures.

They import torch, transformers, peft and forage, and nothing that a borrowed GPU machine may lack; what only one row
needs (bitsandbytes, trl, liger-kernel) is imported there.
"""
