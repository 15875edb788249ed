//! `cosky serve` and `cosky reset-root`: starting, stopping, and the account that is there from the start.
