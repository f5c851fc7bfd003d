"""What benchmarks of learning say of several seeds."""

from __future__ import annotations

import pytest

from benchmarks.learning import STUDENT, interval, student


def test_intervals_of_few_seeds_and_of_many():
    """The table, and beyond it values of any table of Student's t: for 11, 30 and 120 degrees of freedom."""
    assert student(3) == STUDENT[3]
    assert [student(seeds) for seeds in (12, 31, 121)] == pytest.approx([2.201, 2.042, 1.980], abs=1e-3)
    assert student(11) < STUDENT[10]


def test_an_interval_is_the_mean_and_its_standard_error_times_students_t():
    assert interval([0.25]) == "0.25"
    assert interval([1.0, 2.0, 3.0]) == "2.00 ± 2.48"
    assert interval([float(x) for x in range(12)]) == "5.50 ± 2.29"
