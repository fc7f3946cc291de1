"""A clock that moves when the test says so."""


class FakeClock:
    """Both times advance together; they begin far apart, so that mixing them up shows."""

    def __init__(self, mono_s=1000.0, unix_s=1.8e9):
        self._mono_s, self._unix_s = mono_s, unix_s

    def mono_s(self):
        return self._mono_s

    def unix_s(self):
        return self._unix_s

    def sleep(self, seconds):
        self.advance(seconds)

    def advance(self, seconds):
        self._mono_s += seconds
        self._unix_s += seconds
