"""Survival labels: a time, and whether the event happened then, as one signed number.

A row whose event happened has its time, a row that was censored has minus its time; zero has a sign too. So a label is
one float64 wherever rows go: through parts, files and samples.
"""

import narwhals as nw
import numpy as np

from silvan.data.cells import Series, is_number, plain_numbers

_YES, _NO = ("1", "true", "yes", "1.0"), ("0", "false", "no", "0.0")


def signed_times(times: np.ndarray, events: np.ndarray) -> np.ndarray:
    """Return times with the sign of their event."""
    return np.copysign(np.asarray(times, np.float64), np.where(events, 1.0, -1.0))


def times_of(y: np.ndarray) -> np.ndarray:
    """Return the times of signed ones."""
    return np.abs(y)


def events_of(y: np.ndarray) -> np.ndarray:
    """Return whether the event happened at signed times: bool."""
    return ~np.signbit(y)


def encode_events(series: Series) -> tuple[np.ndarray, np.ndarray]:
    """Return 1 where the event happened, 0 where not and -1 where nothing is said; also which cells say neither."""
    if is_number(series):
        numbers = plain_numbers(series).astype(np.float64)
        missing = np.isnan(numbers) | series.is_null().to_numpy().astype(np.bool_)
        strange = ~np.isin(numbers, (0.0, 1.0))
        return np.where(missing, -1, numbers == 1.0), strange & ~missing
    texts = [None if text is None else text.strip().lower() for text in series.cast(nw.String).to_list()]
    happened = np.array([-1 if not text else int(text in _YES) for text in texts], np.int64)
    strange = np.array([bool(text) and text not in (*_YES, *_NO) for text in texts], np.bool_)
    return happened, strange
