"""The user's program: a FastAPI app whose routes are workflows, and a record of every request that reaches it."""

import hashlib
import json
import threading
from dataclasses import dataclass
from typing import Any, Dict, List, Optional

import uvicorn
from fastapi import FastAPI
from upstash_workflow import AsyncWorkflowContext
from upstash_workflow.fastapi import Serve

from support.wait import eventually


@dataclass
class Call:
    """A request that has arrived in full."""

    path: str
    headers: Dict[str, str]
    body: bytes
    #: The response, once it was sent.
    status: Optional[int] = None
    answer: bytes = b""

    @property
    def run(self) -> Optional[str]:
        return self.headers.get("upstash-workflow-runid")

    @property
    def kind(self) -> str:
        if "upstash-workflow-callback" in self.headers:
            return "callback"
        if "upstash-workflow-is-failure" in self.headers:
            return "failure"
        return "step" if "upstash-workflow-sdk-version" in self.headers else "raw"

    def described(self) -> str:
        return self.kind if self.status == 200 else f"{self.kind} {self.status}"


class Witness:
    """An ASGI app around another one that records its requests."""

    def __init__(self, inner: Any, calls: List[Call]) -> None:
        self._inner = inner
        self._calls = calls

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return await self._inner(scope, receive, send)
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        call = Call(scope["path"], headers, body)
        self._calls.append(call)
        status = 0

        async def replay() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        async def record(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)
            if message["type"] == "http.response.body":
                call.answer += message.get("body", b"")
                if not message.get("more_body", False):
                    call.status = status

        await self._inner(scope, replay, record)


class Program:
    """Runs in a thread until it is stopped."""

    def __init__(self) -> None:
        self.calls: List[Call] = []
        self.effects: List[str] = []
        self.told: List[Any] = []
        app = FastAPI()
        self._define(app, Serve(app))
        config = uvicorn.Config(Witness(app, self.calls), host="127.0.0.1", port=0, log_level="critical")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        eventually("the program to listen", lambda: self._server.started)
        self._port = self._server.servers[0].sockets[0].getsockname()[1]

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self._port}{path}"

    def calls_of(self, run: str) -> List[Call]:
        return [call for call in list(self.calls) if call.run == run]

    def raw_calls(self, path: str) -> List[Call]:
        return [call for call in list(self.calls) if call.path == path and call.kind == "raw" and call.status]

    def idle(self) -> None:
        """Waits until every request that has arrived has a response."""
        eventually("requests to be answered", lambda: all(call.status for call in list(self.calls)))

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join()

    def _effect(self, text: str) -> str:
        self.effects.append(text)
        return text

    def _define(self, app: FastAPI, serve: Serve) -> None:
        @serve.post("/steps")
        async def steps(context: AsyncWorkflowContext[Any]) -> Any:
            payload = context.request_payload
            run = context.workflow_run_id

            async def first() -> Any:
                return {"first": self._effect(f"{run} first"), "payload": payload}

            def second() -> Any:
                self._effect(f"{run} second")
                return None

            one = await context.run("first", first)
            await context.sleep("a second", 1)
            two = await context.run("second", second)
            await context.sleep_until("the past", 1)

            async def third() -> Any:
                return self._effect(json.dumps([one, two, context.headers.get("x-tenant")]))

            await context.run("třetí", third)

        @serve.post("/call")
        async def call(context: AsyncWorkflowContext[Any]) -> None:
            async def read() -> Any:
                return context.request_payload

            # In a step, because the SDK also executes the code before the first one when the response to a call arrives.
            options = await context.run("read", read)
            response = await context.call("ask", **options)

            async def keep() -> Any:
                return [response.status, response.body]

            await context.run("keep", keep)

        async def failed(context: Any, fail_status: int, fail_response: str, fail_headers: Any) -> None:
            self.told.append((context.workflow_run_id, context.request_payload, fail_status, fail_response))

        @serve.post("/boom", retries=1, failure_function=failed)
        async def boom(context: AsyncWorkflowContext[Any]) -> None:
            async def fine() -> str:
                return "fine"

            async def explode() -> None:
                raise ValueError("boom")

            await context.run("fine", fine)
            await context.run("explode", explode)

        @serve.post("/guarded", retries=0)
        async def guarded(context: AsyncWorkflowContext[Any]) -> None:
            if context.headers.get("authorization") != "Bearer right":
                return

            async def inside() -> str:
                return self._effect(f"{context.workflow_run_id} inside")

            await context.run("inside", inside)

        @serve.post("/large")
        async def large(context: AsyncWorkflowContext[str]) -> None:
            async def grow() -> str:
                return str(context.request_payload) * 2

            async def measure() -> str:
                return hashlib.sha256(grown.encode()).hexdigest()

            grown = await context.run("grow", grow)
            await context.run("measure", measure)
