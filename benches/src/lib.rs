//! Shared by the benchmarks: the table and the `RATIO` lines they print.
