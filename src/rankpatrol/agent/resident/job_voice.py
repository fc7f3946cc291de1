"""The hub's voice, with the job's name before each line."""

from rankpatrol.agent.voice import Voice


class JobVoice(Voice):
    """Says for one of several jobs what a job's own agent would say."""

    def __init__(self, voice: Voice, job: str) -> None:
        self._voice, self._job = voice, job

    def say(self, what: str, style: str = "plain") -> None:
        self._voice.say(f"{self._job}: {what}", style)

    def show(self, status: str, style: str = "dim") -> None:
        """One live line has no room for many jobs."""

    def rest(self) -> None:
        """The hub gives the terminal back."""
