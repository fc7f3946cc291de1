"""Which pod is which rank, as kubectl's yaml and description tell, where name and value stand on two lines."""

import re
from collections.abc import Iterator

_POD = re.compile(r"\bkubectl\b.*?\bpods?[ /](?P<pod>[a-z0-9][a-z0-9.-]*)|^Name:\s+(?P<described>[a-z0-9][a-z0-9.-]*)$")
_NAME = re.compile(r"^\s*-? ?name: RANK\s*$")
_VALUE = re.compile(r"^\s*value: ['\"]?(?P<rank>\d{1,6})['\"]?\s*$")
_DESCRIBED = re.compile(r"^\s+RANK:\s+(?P<rank>\d{1,6})\s*$")


class Pods:
    """Follows kubectl's output, and gives (pod, rank) where a pod's environment holds its RANK."""

    def __init__(self) -> None:
        self._pod: str | None = None
        self._named = False

    def take(self, text: str) -> Iterator[tuple[str, str]]:
        """The pod and the rank that this line completes, if it does. Cheap for all other lines."""
        if "pod" in text or text.startswith("Name:"):
            seen = _POD.search(text)
            self._pod = (seen["pod"] or seen["described"]) if seen else self._pod
        if self._pod is None:
            return
        value = _VALUE.match(text) if self._named else _DESCRIBED.match(text)
        self._named = bool(_NAME.match(text))
        if value is not None:
            yield self._pod, value["rank"]
