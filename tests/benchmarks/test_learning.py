"""What benchmarks of learning say of several seeds."""

from __future__ import annotations

from benchmarks.learning import interval


def test_an_interval_is_the_mean_and_its_standard_error_times_students_t():
    assert interval([0.25]) == "0.25"
    assert interval([1.0, 2.0, 3.0]) == "2.00 ± 2.48"
    assert interval([float(x) for x in range(12)]) == "5.50 ± 2.29"
