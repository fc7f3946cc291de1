"""The objects of the small API server, and what a cluster's controllers make of them: Job, JobSet, garbage collection."""

import json
import threading
import uuid
from datetime import UTC, datetime

GROUPS = {
    ("", "v1"): {"pods": "Pod"},
    ("batch", "v1"): {"jobs": "Job"},
    ("jobset.x-k8s.io", "v1alpha2"): {"jobsets": "JobSet"},
    ("trainer.kubeflow.org", "v1alpha1"): {"trainjobs": "TrainJob"},
    ("kubeflow.org", "v1"): {"pytorchjobs": "PyTorchJob"},
}
_FOREGROUND = "foregroundDeletion"


class Refused(Exception):
    def __init__(self, code: int, reason: str, message: str, name: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.body = {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "reason": reason,
            "message": message,
            "code": code,
            "details": {"name": name},
        }


class Store:
    """Objects by (plural, namespace, name), each change with a new version; whoever waits is woken."""

    def __init__(self) -> None:
        self.change = threading.Condition(threading.RLock())
        self.objects: dict[tuple[str, str, str], dict] = {}
        self.version = 100
        self.events: list[tuple[int, str, str, str, dict]] = []
        self.knows_suspend = True

    def put(self, plural: str, thing: dict, kind: str = "MODIFIED") -> dict:
        self.version += 1
        thing["metadata"]["resourceVersion"] = str(self.version)
        key = (plural, thing["metadata"]["namespace"], thing["metadata"]["name"])
        self.objects[key] = thing
        self._tell(kind, plural, thing)
        return thing

    def add(self, plural: str, thing: dict) -> dict:
        meta = thing["metadata"]
        if "generateName" in meta:
            meta["name"] = meta["generateName"] + uuid.uuid4().hex[:8]
        if (plural, meta["namespace"], meta["name"]) in self.objects:
            raise Refused(409, "AlreadyExists", f'{plural} "{meta["name"]}" already exists', meta["name"])
        meta.update(uid=str(uuid.uuid4()), creationTimestamp=now())
        if plural == "jobs" and self.knows_suspend:
            thing["spec"].setdefault("suspend", False)
        thing.setdefault("status", {"phase": "Pending"} if plural == "pods" else {})
        return self.put(plural, thing, "ADDED")

    def drop(self, plural: str, thing: dict) -> None:
        meta = thing["metadata"]
        if self.objects.pop((plural, meta["namespace"], meta["name"]), None) is not None:
            self.version += 1
            self._tell("DELETED", plural, thing)

    def listed(self, plural: str, namespace: str) -> list[dict]:
        return [thing for (its, where, _), thing in sorted(self.objects.items()) if (its, where) == (plural, namespace)]

    def owned(self, owner: dict) -> list[tuple[str, dict]]:
        uid = owner["metadata"]["uid"]
        found = list(self.objects.items())
        return [(key[0], thing) for key, thing in found if any(ref["uid"] == uid for ref in thing["metadata"].get("ownerReferences", []))]

    def _tell(self, kind: str, plural: str, thing: dict) -> None:
        self.events.append((self.version, kind, plural, thing["metadata"]["namespace"], json.loads(json.dumps(thing))))
        self.change.notify_all()


class Controllers:
    """Go on after each write, as far as tests need them. Suspended pods count no failure, deleted ones do."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def remove(self, plural: str, thing: dict, options: dict) -> None:
        """Pods go with grace when they are on a node; the others at once, or when what they own is gone."""
        meta = thing["metadata"]
        if options.get("propagationPolicy") == "Foreground":
            meta["finalizers"] = [_FOREGROUND]
        graceful = plural == "pods" and thing["spec"].get("nodeName") and options.get("gracePeriodSeconds") != 0
        if graceful and thing["status"].get("phase") not in {"Succeeded", "Failed"}:
            if "deletionTimestamp" not in meta:
                meta["deletionTimestamp"] = now()
                self.store.put(plural, thing)
        elif meta.get("finalizers"):
            meta.setdefault("deletionTimestamp", now())
            self.store.put(plural, thing)
        else:
            self.store.drop(plural, thing)

    def settle(self, thing: dict) -> dict:
        """What controllers do of it, until nothing changes; the object as it was before."""
        answer, before = json.loads(json.dumps(thing)), -1
        while before != self.store.version:
            before = self.store.version
            for (plural, _, _), each in list(self.store.objects.items()):
                if plural == "jobs":
                    self._job_controller(each)
                elif plural == "jobsets":
                    self._jobset_controller(each)
            self._collect_garbage()
        return answer

    def _job_controller(self, job: dict) -> None:
        meta, spec, status = job["metadata"], job["spec"], job["status"]
        if "deletionTimestamp" in meta or "template" not in spec or any(each["status"] == "True" for each in status.get("conditions", [])):
            return
        pods = [pod for plural, pod in self.store.owned(job) if plural == "pods"]
        alive = [pod for pod in pods if pod["status"].get("phase") not in {"Succeeded", "Failed"}]
        staying = [pod for pod in alive if "deletionTimestamp" not in pod["metadata"]]
        if spec.get("suspend"):
            for pod in staying:
                status.setdefault("uncounted", []).append(pod["metadata"]["uid"])
                self.remove("pods", pod, {})
            return
        counted = status.setdefault("counted", [])
        failed = [pod for pod in pods if pod["status"].get("phase") == "Failed" or "deletionTimestamp" in pod["metadata"]]
        for pod in failed:
            uid = pod["metadata"]["uid"]
            if uid not in counted and uid not in status.get("uncounted", []):
                counted.append(uid)
                status["failed"] = status.get("failed", 0) + 1
                self.store.put("jobs", job)
        succeeded = [pod for pod in pods if pod["status"].get("phase") == "Succeeded"]
        if len(succeeded) >= spec.get("completions", 1):
            status.update(conditions=[{"type": "Complete", "status": "True"}], completionTime=now())
            self.store.put("jobs", job)
        elif status.get("failed", 0) > spec.get("backoffLimit", 6):
            condition = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "Job has reached the limit"}
            status.update(conditions=[condition])
            self.store.put("jobs", job)
        elif len(staying) + len(succeeded) < spec.get("parallelism", 1) and len(alive) == len(staying):
            self.store.add("pods", _pod_of(job))

    def _jobset_controller(self, jobset: dict) -> None:
        meta, spec = jobset["metadata"], jobset["spec"]
        if "deletionTimestamp" in meta:
            return
        names = {job["metadata"]["name"]: job for plural, job in self.store.owned(jobset) if plural == "jobs"}
        for part in spec.get("replicatedJobs", []):
            for index in range(part.get("replicas", 1)):
                name = f"{meta['name']}-{part['name']}-{index}"
                labels = {"jobset.sigs.k8s.io/jobset-name": meta["name"]}
                if name not in names:
                    template = json.loads(json.dumps(part["template"]["spec"]))
                    template["template"].setdefault("metadata", {}).setdefault("labels", {}).update(labels)
                    where = {"name": name, "namespace": meta["namespace"], "labels": labels, "ownerReferences": [_owner(jobset)]}
                    self.store.add("jobs", {"metadata": where, "spec": {**template, "suspend": bool(spec.get("suspend"))}})
                elif names[name]["spec"].get("suspend", False) != bool(spec.get("suspend")):
                    names[name]["spec"]["suspend"] = bool(spec.get("suspend"))
                    self.store.put("jobs", names[name])

    def _collect_garbage(self) -> None:
        uids = {thing["metadata"]["uid"] for thing in self.store.objects.values()}
        for (plural, _, _), thing in list(self.store.objects.items()):
            owners = thing["metadata"].get("ownerReferences", [])
            if owners and not any(owner["uid"] in uids for owner in owners) and "deletionTimestamp" not in thing["metadata"]:
                self.remove(plural, thing, {})
            if _FOREGROUND in thing["metadata"].get("finalizers", []):
                below = self.store.owned(thing)
                for their, each in below:
                    if "deletionTimestamp" not in each["metadata"]:
                        self.remove(their, each, {"propagationPolicy": "Foreground"} if their != "pods" else {})
                if not below:
                    self.store.drop(plural, thing)


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _owner(thing: dict) -> dict:
    kind = next(kinds[plural] for kinds in GROUPS.values() for plural in kinds if kinds[plural] == thing.get("kind", "Job"))
    return {"uid": thing["metadata"]["uid"], "kind": kind, "name": thing["metadata"]["name"], "controller": True}


def _pod_of(job: dict) -> dict:
    template = json.loads(json.dumps(job["spec"]["template"]))
    labels = {**template.get("metadata", {}).get("labels", {}), "job-name": job["metadata"]["name"]}
    meta = {"generateName": f"{job['metadata']['name']}-", "namespace": job["metadata"]["namespace"], "labels": labels}
    return {"metadata": {**meta, "ownerReferences": [_owner(job)]}, "spec": template["spec"]}
