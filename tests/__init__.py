"""Tests, in the same folders as what they test."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
