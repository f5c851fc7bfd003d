import pytest

from benchmarks.soak import Sample, growth, second_half


def test_growth_is_the_slope_of_the_second_half():
    # memory rises fast at first, then by 0.5 megabytes a second; the last sample is of a run that is ending
    samples = [Sample(t, 100.0 * t) for t in range(10)] + [Sample(t, 1000 + 0.5 * t) for t in range(10, 20)]
    later = second_half([*samples, Sample(20, 3.0)])
    assert [sample.seconds for sample in later] == list(range(10, 20))
    assert growth(later) == pytest.approx(0.5)
