"""A service: frames come in over HTTPS, results go out. The protocol is the Open Inference Protocol, version 2.

1. The messages (`protocol`): JSON, or JSON with tensors as bytes behind it, as Triton, KServe and OpenVINO Model Server
   define them. A model with one input takes the bytes of a frame without any JSON.
2. Admission (`admission`): a bounded queue in front of the pipeline, a limit for each client, deadlines, and the
   answers that are kept for a client that asks again with the same `Idempotency-Key`.
3. The server (`server`): HTTP/1.1 by aiohttp, TLS 1.3 with certificates of both ends; health, readiness and metrics.
4. The clients (`client`): of the standard library alone.

One request is one frame, and its answer is the result. A client that does not read its answers keeps its own places
occupied, at most `ServiceLimits.of_a_client`; the pipeline and other clients go on.
"""
