"""A stand-in for the API of Kubernetes with a node: runs the programs of Jobs, and checks what is sent to it.

It has what the service calls: CronJobs, Jobs, Secrets, Pods with lists and watches, logs, and reviews of access.
Source: https://kubernetes.io/docs/reference/kubernetes-api/ and .../using-api/api-concepts/.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import ssl
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import kubernetes_validate
from aiohttp import web

NAMESPACE = "agents"
VERSION = "1.33"
"""Of Kubernetes, whose published schemas what is sent must keep to."""
TOKEN = "token-of-the-service"
Json = dict[str, Any]


def cron_job(program: str, **pod: Any) -> Json:
    """Return a CronJob whose Job runs a program of Python."""
    container = {"name": "agent", "image": "example.com/agent", "command": [sys.executable, "-c", program], **pod}
    template = {
        "metadata": {"labels": {"app": "agent"}},
        "spec": {"containers": [container, {"name": "proxy", "image": "example.com/proxy"}]},
    }
    evicted = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    job = {"template": template, "podFailurePolicy": {"rules": [evicted]}}
    return {"spec": {"suspend": True, "jobTemplate": {"metadata": {}, "spec": job}}}


class KubernetesApi:
    """One namespace. `placed` decides how a Pod starts: by default at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.cron_jobs: dict[str, Json] = {}
        self.jobs: dict[str, Json] = {}
        self.secrets: dict[str, Json] = {}
        self.pods: dict[str, Json] = {}
        self.calls: list[str] = []
        self.allowed = True
        self.unreachable = 0
        """How many calls from now on are answered with 503."""
        self.pending: Json | None = None
        """What a Pod that is not started reports in its status."""
        self._logs: dict[str, bytes] = {}
        self._log_from = self._log_cuts = 0
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._nodes: set[asyncio.Task[None]] = set()
        self._version = 1
        self._changed = asyncio.Condition()
        self._events: list[tuple[int, str, Json]] = []

    @asynccontextmanager
    async def served(self, context: ssl.SSLContext | None = None) -> AsyncIterator[str]:
        app = web.Application(middlewares=[self._check])
        batch, core = f"/apis/batch/v1/namespaces/{NAMESPACE}", f"/api/v1/namespaces/{NAMESPACE}"
        app.router.add_get(batch + "/cronjobs/{name}", self._get_cron_job)
        app.router.add_post(batch + "/jobs", self._create_job)
        app.router.add_delete(batch + "/jobs/{name}", self._delete_job)
        app.router.add_post(core + "/secrets", self._create_secret)
        app.router.add_get(core + "/pods", self._list_or_watch_pods)
        app.router.add_get(core + "/pods/{name}/log", self._log)
        app.router.add_post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", self._review)
        runner = web.AppRunner(app, shutdown_timeout=0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        try:
            yield f"{'https' if context else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            for process in self._processes.values():
                if process.returncode is None:
                    process.kill()
            await asyncio.gather(*self._nodes)
            await runner.cleanup()

    async def change_pod(self, job: str, **status: Any) -> None:
        self.pods[job]["status"] |= status
        await self._publish("MODIFIED", self.pods[job])

    async def delete_pod(self, job: str) -> None:
        pod = self.pods.pop(job)
        if (process := self._processes.get(job)) is not None and process.returncode is None:
            process.kill()
        await self._publish("DELETED", pod)

    async def cut_logs(self, removed_lines: int = 0) -> None:
        """Cut the connections on which logs are followed, and remove the first lines of later readings."""
        async with self._changed:
            self._log_from = removed_lines
            self._log_cuts += 1
            self._changed.notify_all()

    @staticmethod
    def right_for(call: str) -> tuple[str, str]:
        """Return the resource and the verb that a Role must allow for a call."""
        method, path = call.split()
        parts = path.partition("?")[0].partition(f"/namespaces/{NAMESPACE}/")[2].split("/")
        resource = "/".join((parts[0], *parts[2:]))
        if method == "GET" and len(parts) == 1:
            return resource, "watch" if "watch=true" in path else "list"
        return resource, {"GET": "get", "POST": "create", "DELETE": "delete"}[method]

    @web.middleware
    async def _check(self, request: web.Request, handler: Callable[..., Any]) -> web.StreamResponse:
        self.calls.append(f"{request.method} {request.path_qs}")
        if self.unreachable:
            self.unreachable -= 1
            return web.Response(status=503, text="the API is being replaced")
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._error(401, "Unauthorized")
        response: web.StreamResponse = await handler(request)
        return response

    @staticmethod
    def _error(status: int, message: str) -> web.Response:
        return web.json_response({"kind": "Status", "status": "Failure", "message": message}, status=status)

    async def _review(self, request: web.Request) -> web.Response:
        review = await request.json()
        attributes = review["spec"]["resourceAttributes"]
        assert attributes == {"namespace": NAMESPACE, "verb": "create", "group": "batch", "resource": "jobs"}
        return web.json_response({**review, "status": {"allowed": self.allowed}}, status=201)

    async def _get_cron_job(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in self.cron_jobs:
            return self._error(404, f'cronjobs.batch "{name}" not found')
        return web.json_response(self.cron_jobs[name])

    async def _create_job(self, request: web.Request) -> web.Response:
        job = await request.json()
        name = job["metadata"]["name"]
        if not self.allowed:
            return self._error(403, "jobs.batch is forbidden: exceeded quota")
        assert len(name) <= 63
        kubernetes_validate.validate(job, VERSION, strict=True)
        job["metadata"]["uid"] = f"uid-of-{name}"
        self.jobs[name] = job
        self._nodes.add(asyncio.create_task(self._run(job)))
        return web.json_response(job, status=201)

    async def _create_secret(self, request: web.Request) -> web.Response:
        secret = await request.json()
        kubernetes_validate.validate(secret, VERSION, strict=True)
        name = secret["metadata"]["name"]
        assert secret["metadata"]["ownerReferences"][0]["uid"] == self.jobs[name]["metadata"]["uid"]
        async with self._changed:
            self.secrets[name] = secret
            self._changed.notify_all()
        return web.json_response(secret, status=201)

    async def _delete_job(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in self.jobs:
            return self._error(404, f'jobs.batch "{name}" not found')
        assert (await request.json())["propagationPolicy"] == "Background"
        del self.jobs[name]
        self.secrets.pop(name, None)
        if name in self.pods:
            await self.delete_pod(name)
        return web.json_response({"kind": "Status", "status": "Success"})

    async def _list_or_watch_pods(self, request: web.Request) -> web.StreamResponse:
        job = request.query["labelSelector"].removeprefix("job-name=")
        if request.query.get("watch") != "true":
            items = [self.pods[job]] if job in self.pods else []
            return web.json_response({"metadata": {"resourceVersion": str(self._version)}, "items": items})
        response = web.StreamResponse()
        await response.prepare(request)
        seen = sum(version <= int(request.query["resourceVersion"]) for version, _, _ in self._events)
        while True:
            events = await self._events_after(seen)
            seen += len(events)
            for _, kind, pod in events:
                if pod["metadata"]["labels"]["job-name"] == job:
                    await response.write(json.dumps({"type": kind, "object": pod}).encode() + b"\n")

    async def _events_after(self, seen: int) -> list[tuple[int, str, Json]]:
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._events) > seen)
            return self._events[seen:]

    async def _log(self, request: web.Request) -> web.StreamResponse:
        job = request.match_info["name"].removesuffix("-pod")
        assert (request.query["container"], request.query["timestamps"]) == ("agent", "true")
        if job not in self._logs:
            return self._error(400, 'container "agent" in pod is waiting to start: PodInitializing')
        response = web.StreamResponse()
        await response.prepare(request)
        sent, start, cuts = 0, self._log_from, self._log_cuts
        while True:
            lines = self._logs[job].removesuffix(b"\n").split(b"\n") if self._logs[job] else []
            # Two lines have the same time: nodes read several at once.
            stamped = b"\n".join(b"2026-11-29T08:00:00.%09dZ %s" % (n // 2, line) for n, line in enumerate(lines))
            stamped += b"\n" if self._logs[job].endswith(b"\n") else b""
            stamped = stamped.split(b"\n", start)[-1] if len(lines) > start else b""
            await response.write(stamped[sent:])
            sent = len(stamped)
            if request.query["follow"] != "true" or self._processes[job].returncode is not None:
                return response
            await self._more_log(job, len(self._logs[job]), cuts)
            if self._log_cuts != cuts:
                assert request.transport is not None
                request.transport.abort()
                return response

    async def _more_log(self, job: str, length: int, cuts: int) -> None:
        process = self._processes[job]
        async with self._changed:
            await self._changed.wait_for(
                lambda: len(self._logs[job]) > length or process.returncode is not None or self._log_cuts != cuts
            )

    async def _publish(self, kind: str, pod: Json) -> None:
        async with self._changed:
            self._version += 1
            self._events.append((self._version, kind, json.loads(json.dumps(pod))))
            self._changed.notify_all()

    async def _run(self, job: Json) -> None:
        """Do what the controller of Jobs and a node do."""
        name = job["metadata"]["name"]
        spec = job["spec"]["template"]["spec"]
        assert (job["spec"]["backoffLimit"], job["spec"]["suspend"], spec["restartPolicy"]) == (0, False, "Never")
        assert "podFailurePolicy" not in job["spec"], "it may have an evicted Pod replaced"
        annotations = job["spec"]["template"]["metadata"]["annotations"]
        metadata = {"name": f"{name}-pod", "labels": {"job-name": name}, "annotations": annotations}
        # As with a sidecar that is injected before the containers of the template.
        injected = {**spec, "containers": [{"name": "injected"}, *spec["containers"]]}
        self.pods[name] = {
            "metadata": metadata,
            "spec": injected,
            "status": {"phase": "Pending", **(self.pending or {})},
        }
        await self._publish("ADDED", self.pods[name])
        if self.pending is not None:
            return
        async with self._changed:
            await self._changed.wait_for(lambda: name in self.secrets or name not in self.jobs)
        if name not in self.jobs:
            return
        self._logs[name] = b""
        process = self._processes[name] = await asyncio.create_subprocess_exec(
            *spec["containers"][0]["command"],
            *spec["containers"][0].get("args", ()),
            env={**self._environment(name, spec), "PATH": os.environ["PATH"]},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        await self.change_pod(name, phase="Running", **_state(running={}))
        assert process.stdout is not None
        while chunk := await process.stdout.read(65_536):
            async with self._changed:
                self._logs[name] += chunk
                self._changed.notify_all()
        code = await process.wait()
        async with self._changed:
            self._changed.notify_all()
        if name in self.pods:
            ended = {"exitCode": code, "reason": "Error" if code else "Completed"}
            await self.change_pod(name, phase="Failed" if code else "Succeeded", **_state(terminated=ended))

    def _environment(self, name: str, spec: Json) -> dict[str, str]:
        """Mount the Secret: return the variables, whose paths are those of a folder here."""
        [volume] = [volume for volume in spec["volumes"] if "secret" in volume]
        container = spec["containers"][0]
        [mount] = [mount for mount in container["volumeMounts"] if mount["name"] == volume["name"]]
        (mounted := self._folder / name).mkdir()
        for file, text in self.secrets[volume["secret"]["secretName"]]["data"].items():
            (mounted / file).write_bytes(base64.b64decode(text))
        return {pair["name"]: pair["value"].replace(mount["mountPath"], str(mounted)) for pair in container["env"]}


def _state(**state: Any) -> Json:
    return {"containerStatuses": [{"name": "proxy", "state": {"running": {}}}, {"name": "agent", "state": state}]}
