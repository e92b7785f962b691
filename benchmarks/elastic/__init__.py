"""Benchmark of elastic training under frequent kills, compared with restarts of the whole job."""
