"""The API of a Kubernetes cluster, through its official client, each call with a deadline. Nothing is decided here.

The client is imported when it is needed: it is the extra `k8s`, and takes a second.
"""

import importlib.util
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from rankpatrol.core.errors import BadInput, PatrolError
from rankpatrol.core.records import Missing, Record
from rankpatrol.schedulers.kubernetes_json import Document, JobDoc, Named, NamedList, Pod, PodList, plain, read_object, read_refusal
from rankpatrol.schedulers.kubernetes_words import KINDS, KubeJob

if TYPE_CHECKING:
    from kubernetes.client import ApiClient, Configuration

CALL_S = 8.0
_PAGE, _MOST_PAGES = 250, 40
_MOST_BYTES = 64 << 20
_CHUNK_BYTES = 1 << 20
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
Page = TypeVar("Page", PodList, NamedList)


class KubernetesSilent(PatrolError):
    """The API did not answer, or not in a way that can be understood: nothing is known of its jobs."""

    help = "Look at `kubectl get --raw /readyz` and `rankpatrol doctor`. Pods go on without the API; nothing is ended meanwhile."


class KubernetesAbsent(PatrolError):
    """There is no way to the API from here."""

    help = (
        "Give a kubeconfig (KUBECONFIG, or ~/.kube/config), or run it in a pod with a service account; "
        "and pip install '.[k8s]' in rankpatrol's clone."
    )


class Answer(Record, frozen=True, kw_only=True):
    """What the API said. `why` is its refusal in one line, empty where it agreed."""

    code: int
    body: bytes
    why: str = ""


def installed() -> bool:
    """True where the official client is here."""
    return importlib.util.find_spec("kubernetes") is not None


def way_in(environment: Mapping[str, str] | None = None) -> str:
    """How the API would be reached: `kubeconfig`, `pod` (a service account), or nothing."""
    values = os.environ if environment is None else environment
    if _kubeconfig(values):
        return "kubeconfig"
    return "pod" if "KUBERNETES_SERVICE_HOST" in values and (_SERVICE_ACCOUNT / "token").is_file() else ""


def own_namespace() -> str:
    """The namespace of the pod that we are in; empty where we are in none, or it has no service account."""
    try:
        return (_SERVICE_ACCOUNT / "namespace").read_text(encoding="utf-8")[:64].strip()
    except (OSError, UnicodeDecodeError):
        return ""


class KubernetesClient:
    """Asks and tells. Every name is checked before it is given here."""

    def __init__(self, *, call_s: float = CALL_S) -> None:
        self._call_s = call_s
        self._made: ApiClient | None = None

    def namespace(self) -> str:
        """The one that is meant where none is named: the pod's, or the kubeconfig's. Raises KubernetesSilent."""
        if way_in() == "pod":
            return own_namespace() or "default"
        from kubernetes import config  # ruff: ignore[PLC0415] - an extra

        try:
            _, active = config.list_kube_config_contexts(config_file=_kubeconfig(os.environ))  # type: ignore[no-untyped-call]  # as its module
            return str(active["context"].get("namespace") or "default")
        except Exception as problem:  # whatever a file of any content may raise
            raise KubernetesSilent(f"the kubeconfig cannot be read: {plain(str(problem))}") from problem

    def job(self, job: KubeJob) -> JobDoc | Missing:
        """Its object; Missing where there is none. Raises KubernetesSilent."""
        answer = self._object("get", job)
        return self._absent(job, answer) if answer.code == 404 else self._read(answer, JobDoc, f"{job.kind.plural} may not be read")

    def pod(self, job: KubeJob) -> Pod | Missing:
        """One pod by its name; Missing where there is none. Raises KubernetesSilent."""
        answer = self._core("read_namespaced_pod", name=job.name, namespace=job.namespace)
        return self._absent(job, answer) if answer.code == 404 else self._read(answer, Pod, "pods may not be read")

    def pods(self, namespace: str, selector: str) -> tuple[Pod, ...]:
        """All pods with this label. Raises KubernetesSilent."""

        def page(more: dict[str, Any]) -> PodList:
            answer = self._core("list_namespaced_pod", namespace=namespace, label_selector=selector, limit=_PAGE, **more)
            return self._read(answer, PodList, "pods may not be listed")

        return tuple(pod for each in _pages(page) for pod in each.items or ())

    def jobs(self, namespace: str, selector: str) -> tuple[Named, ...]:
        """All Jobs with this label, by their metadata. Raises KubernetesSilent."""
        kind = KINDS["job"]
        where = {"group": kind.group, "version": kind.version, "namespace": namespace, "plural": kind.plural}

        def page(more: dict[str, Any]) -> NamedList:
            answer = self._custom("list_namespaced_custom_object", **where, label_selector=selector, limit=_PAGE, **more)
            return self._read(answer, NamedList, "jobs may not be listed")

        return tuple(named for each in _pages(page) for named in each.items or ())

    def change(self, job: KubeJob, seen: JobDoc, path: tuple[str, ...], *, value: bool) -> Answer:
        """Set one field of the object, if it is still exactly the one that was seen. Raises KubernetesSilent."""
        change: Any = value
        for part in reversed(path):
            change = {part: change}
        # With these in it the API takes a patch for that object in that version alone: 422 for another uid, 409 for another version.
        body = {"metadata": {"uid": seen.metadata.uid, "resourceVersion": seen.metadata.resource_version}, **change}
        return self._object("patch", job, body=body)

    def delete_job(self, job: KubeJob, seen: JobDoc) -> Answer:
        """Delete the object and then all that it owns, if it is still exactly the one that was seen. Raises KubernetesSilent."""
        return self._object("delete", job, body=self._options(seen.metadata.uid, seen.metadata.resource_version, "Foreground"))

    def delete_pod(self, namespace: str, pod: Pod) -> Answer:
        """Delete exactly this pod, with the grace it asked for. Raises KubernetesSilent."""
        options = self._options(pod.metadata.uid, None, None)
        return self._core("delete_namespaced_pod", name=pod.metadata.name, namespace=namespace, body=options)

    def may(self, verb: str, group: str, plural: str, namespace: str) -> bool:
        """Whether we have this right. Raises KubernetesSilent."""
        asked = {"verb": verb, "group": group, "resource": plural, "namespace": namespace}
        kind = {"group": "authorization.k8s.io", "version": "v1", "plural": "selfsubjectaccessreviews"}
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": asked}}
        answer = self._custom("create_cluster_custom_object", **kind, body=body)
        if answer.why:
            raise KubernetesSilent(f"our rights cannot be learned: {answer.why}")
        try:
            return msgspec.json.decode(answer.body, type=_Review).status.allowed
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as problem:
            raise KubernetesSilent(f"our rights cannot be learned: {plain(str(problem))}") from problem

    def _object(self, verb: str, job: KubeJob, **words: Any) -> Answer:
        kind = job.kind
        where = {"group": kind.group, "version": kind.version, "namespace": job.namespace, "plural": kind.plural, "name": job.name}
        return self._custom(f"{verb}_namespaced_custom_object", **where, **words)

    def _custom(self, method: str, **words: Any) -> Answer:
        def call(until: float) -> Answer:
            from kubernetes.client import CustomObjectsApi  # ruff: ignore[PLC0415] - an extra

            client = self._patcher() if method.startswith("patch") else self._client()
            return self._answer(getattr(CustomObjectsApi(client), method), words, until)

        return self._within(call)

    def _core(self, method: str, **words: Any) -> Answer:
        def call(until: float) -> Answer:
            from kubernetes.client import CoreV1Api  # ruff: ignore[PLC0415] - an extra

            return self._answer(getattr(CoreV1Api(self._client()), method), words, until)

        return self._within(call)

    def _answer(self, method: Callable[..., Any], words: dict[str, Any], until: float) -> Answer:
        from kubernetes.client import ApiException  # ruff: ignore[PLC0415] - an extra

        if time.monotonic() >= until:  # the credentials came too late: nobody waits for this any more, so nothing is asked or told
            raise KubernetesSilent("its turn was over before it was sent")
        try:
            response = method(**words, _preload_content=False, _request_timeout=(self._call_s, self._call_s))
        except ApiException as refused:
            body = refused.body if isinstance(refused.body, bytes) else str(refused.body or "").encode()
            told = read_refusal(body).message or str(refused.reason or "")
            return Answer(code=int(refused.status or 0), body=body, why=f"{refused.status}: {plain(told)}")
        try:
            answer = Answer(code=response.status, body=_whole(response))
        except BaseException:
            response.close()  # what is left of it would be read as the next answer
            raise
        response.release_conn()
        return answer

    def _client(self) -> "ApiClient":
        """Made in the thread that may be left behind: a kubeconfig may name a program that gives the credentials, and hangs."""
        if self._made is None:
            from kubernetes.client import ApiClient  # ruff: ignore[PLC0415] - an extra

            self._made = ApiClient(_configuration())
        return self._made

    def _patcher(self) -> "ApiClient":
        """The same for patches: versions of the client differ in what kind of patch they take a body for, unless they are told."""
        from kubernetes.client import ApiClient  # ruff: ignore[PLC0415] - an extra

        patcher = ApiClient(self._client().configuration)
        patcher.set_default_header("Content-Type", "application/merge-patch+json")  # type: ignore[no-untyped-call]  # as its module
        return patcher

    def _within(self, call: Callable[[float], Answer]) -> Answer:
        """One call in a thread that is left behind at the deadline: a server may as well send a byte a second for ever."""
        if not installed():
            raise KubernetesAbsent("the Kubernetes client is not installed")
        # On a busy machine this takes seconds, which are not the API's: measured 3 s at a load of 10 on two cores, 0.9 s on a quiet one.
        from kubernetes.client import CoreV1Api, CustomObjectsApi  # ruff: ignore[PLC0415, F401] - an extra, loaded when it is named

        answers: queue.SimpleQueue[Answer | Exception] = queue.SimpleQueue()

        def work() -> None:
            try:
                answers.put(call(until))
            except Exception as problem:  # ruff: ignore[BLE001] - of a library's many: whichever it is, the API has not answered
                answers.put(problem)

        until = time.monotonic() + self._call_s
        threading.Thread(target=work, name="kubernetes", daemon=True).start()
        try:
            answer = answers.get(timeout=self._call_s)
        except queue.Empty:
            raise KubernetesSilent(f"no answer from the Kubernetes API after {self._call_s:g} s") from None
        if isinstance(answer, PatrolError):
            raise answer
        if isinstance(answer, Exception):
            raise KubernetesSilent(f"no answer from the Kubernetes API: {type(answer).__name__}: {plain(str(answer))}") from answer
        return answer

    def _read(self, answer: Answer, kind: type[Document], what: str) -> Document:
        if answer.code in {401, 403}:
            raise KubernetesSilent(f"{what}: {answer.why}", help=_RIGHTS)
        if answer.why or not 200 <= answer.code < 300:
            raise KubernetesSilent(f"the Kubernetes API says {answer.why or answer.code}")
        try:
            return read_object(answer.body, kind)
        except BadInput as problem:
            raise KubernetesSilent(str(problem), help=problem.help) from problem

    def _absent(self, job: KubeJob, answer: Answer) -> Missing:
        """A kind that the server does not know is no answer about this job's name."""
        if read_refusal(answer.body).details is None:
            return Missing(f"this API server has no {job.kind.plural} of {job.kind.group}/{job.kind.version}")
        return Missing(f"there is no {job.kind.api_kind} {job.name} in namespace {job.namespace}: it never was there, or was deleted")

    def _options(self, uid: str, version: str | None, policy: str | None) -> Any:
        from kubernetes.client import V1DeleteOptions, V1Preconditions  # ruff: ignore[PLC0415] - an extra

        return V1DeleteOptions(preconditions=V1Preconditions(uid=uid, resource_version=version), propagation_policy=policy)


class _ReviewStatus(Record, frozen=True):
    allowed: bool = False


class _Review(Record, frozen=True):
    status: _ReviewStatus


_NAME_IT = "Set KUBECONFIG to the file that kubectl uses, or unset it: ~/.kube/config is taken then."
_RIGHTS = "examples/kubernetes/rbac.yaml has the rights that are needed; `rankpatrol doctor` tells which of them are there."


def _kubeconfig(values: Mapping[str, str]) -> str:
    """The file, or the files with colons between them."""
    if named := values.get("KUBECONFIG", ""):
        return named
    home = values.get("HOME", "")
    default = Path(home) / ".kube" / "config"
    return str(default) if home and default.is_file() else ""


def _configuration() -> "Configuration":
    from kubernetes import client, config  # ruff: ignore[PLC0415] - an extra

    made = client.Configuration()
    way = way_in()
    if way == "kubeconfig":
        _check_there(_kubeconfig(os.environ))
        config.load_kube_config(config_file=_kubeconfig(os.environ), client_configuration=made)  # type: ignore[no-untyped-call]  # its own module has no types
    elif way == "pod":
        config.load_incluster_config(client_configuration=made)  # type: ignore[no-untyped-call]  # as above
    else:
        raise KubernetesAbsent("there is no kubeconfig here, and this is no pod with a service account")
    # A deed that was not answered must be read back, not done again behind our back.
    made.retries = False
    return made


def _check_there(kubeconfig: str) -> None:
    """Files that are not there are left out by the client, and the rest is enough for it."""
    files = [file for file in kubeconfig.split(os.pathsep) if file]
    if not any(Path(file).exists() for file in files):
        raise KubernetesAbsent(f"KUBECONFIG names {', '.join(files)}, and no such file is there", help=_NAME_IT)


def _whole(response: Any) -> bytes:
    """All of an answer, up to a cap: what is longer is no answer of an API."""
    body = bytearray()
    while chunk := response.read(_CHUNK_BYTES):
        body += chunk
        if len(body) > _MOST_BYTES:
            raise KubernetesSilent(f"the Kubernetes API answered with more than {_MOST_BYTES >> 20} MiB")
    return bytes(body)


def _pages(page: Callable[[dict[str, Any]], Page]) -> Iterator[Page]:
    more: dict[str, Any] = {}
    for _ in range(_MOST_PAGES):
        found = page(more)
        yield found
        if not found.metadata.next_page:
            return
        more = {"_continue": found.metadata.next_page}
    raise KubernetesSilent(f"there are more than {_PAGE * _MOST_PAGES} of them")
