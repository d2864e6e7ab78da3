"""The drawing board: what the server answers and what it refuses."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from typing import Any

import numpy as np
import pytest
import torch

from torchckn import ConfigError, DataError, data, draw
from torchckn.draw import LIMIT, make_server
from torchckn.draw.board import SIDE, as_input, parse_drawing

from .drawing import started


def ask(server: Any, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        content = answer.read()
        return answer.status, json.loads(content) if answer.headers["Content-Type"] == "application/json" else content
    finally:
        connection.close()


def drawn(image: torch.Tensor) -> bytes:
    """A digit of the data set as the page would send it."""
    large = np.kron(image[0].numpy(), np.ones((4, 4), np.uint8))
    return json.dumps({"pixels": large.flatten().tolist()}).encode()


def test_a_digit_is_recognized_and_its_nearest_images_have_its_class(server: Any, digits: data.DataSet) -> None:
    test = digits.test
    assert test is not None
    right, alike = 0, 0
    for image, label in zip(test.images[:20], test.labels[:20].tolist(), strict=True):
        status, content = ask(server, "POST", "/classify", drawn(image))
        assert status == 200
        ckn, convnet = content["answers"]
        assert ckn["name"].endswith("(CKN)")
        assert convnet["name"].endswith("(ConvNet)")
        assert sum(ckn["probabilities"]) == pytest.approx(1, abs=1e-2)
        right += int(np.argmax(ckn["probabilities"])) == label
        alike += sum(found["label"] == str(label) for found in ckn["nearest"])
        assert convnet["nearest"] == []
    assert right >= 15
    assert alike >= 0.6 * 8 * 20


def test_an_empty_drawing_is_classified_too(server: Any) -> None:
    status, content = ask(server, "POST", "/classify", json.dumps({"pixels": [0] * SIDE**2}).encode())
    assert status == 200
    assert len(content["answers"]) == 2


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"\xff\xfe", b'{"pixels": [1, 2]}', b'{"pixels": "' + b"1" * SIDE**2 + b'"}', b"[" * 50_000]
    + [json.dumps({"pixels": [value] * SIDE**2}).encode() for value in (256, -1, 0.5, None)],
)
def test_malformed_drawings_are_refused_and_the_server_keeps_running(server: Any, body: bytes) -> None:
    status, content = ask(server, "POST", "/classify", body)
    assert status == 400
    assert "integers from 0 to 255" in content["error"]
    assert ask(server, "GET", "/")[0] == 200


def test_oversized_and_other_requests_are_refused(server: Any) -> None:
    assert ask(server, "POST", "/classify", b"", Content_Length=str(LIMIT + 1))[0] == 413
    for length in ("-5", "9" * 50):
        assert ask(server, "POST", "/classify", b"", Content_Length=length)[0] == 411
    assert ask(server, "POST", "/classify", b"{}", Origin="http://evil.example")[0] == 403
    assert ask(server, "GET", "/etc/passwd")[0] == 404
    assert ask(server, "POST", "/", b"{}")[0] == 404
    assert ask(server, "GET", "/", Host="evil.example:80")[0] == 403
    assert ask(server, "DELETE", "/")[0] == 501


def request(server: Any, *headers: str, line: str = "GET / HTTP/1.1", host: bool = True, body: bytes = b"") -> bytes:
    """A request, byte by byte."""
    lines = [line, *([f"Host: 127.0.0.1:{server.server_port}"] if host else []), *headers]
    return "".join(f"{text}\r\n" for text in (*lines, "")).encode() + body


def answered(server: Any, content: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and content of the answer to a request."""
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=30) as connection:
        connection.sendall(content)
        return parsed(received(connection))


def received(connection: socket.socket) -> bytes:
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)


def parsed(answer: bytes) -> tuple[int, dict[str, str], bytes]:
    head, _, content = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    pairs = [line.split(": ", 1) for line in lines]
    return int(first.split()[1]), {name.lower(): value for name, value in pairs}, content


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("GET / HTTP/1.1", 200),
        ("GET /none HTTP/1.1", 404),
        ("POST / HTTP/1.1", 404),
        ("POST /classify HTTP/1.1", 411),
        ("DELETE / HTTP/1.1", 501),
        ("GET / HTTP/9.9", 505),
        ("GET /", 200),
        ("nonsense", 400),
    ],
)
def test_every_answer_has_the_policy_and_tells_no_version(server: Any, line: str, status: int) -> None:
    got, headers, content = answered(server, request(server, line=line))
    assert got == status
    policy = dict(directive.split(" ", 1) for directive in headers["content-security-policy"].split("; "))
    assert (policy["default-src"], policy["frame-ancestors"]) == ("'none'", "'none'")
    assert (policy["base-uri"], policy["form-action"]) == ("'none'", "'none'")
    assert (policy["connect-src"], policy["img-src"]) == ("'self'", "data:")
    for directive in ("script-src", "style-src"):
        assert policy[directive].startswith("'sha256-")
        assert "unsafe" not in policy[directive]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["server"] == "torchckn"
    assert headers["content-type"] == ("text/html; charset=utf-8" if status == 200 else "application/json")
    assert int(headers["content-length"]) == len(content)


def test_a_request_needs_exactly_one_host_header_and_the_right_one(server: Any) -> None:
    port = server.server_port
    hosts: list[tuple[list[str], int]] = [
        ([f"127.0.0.1:{port}"], 200),
        ([f"localhost:{port}"], 200),
        ([], 403),
        ([f"127.0.0.1:{port}", f"127.0.0.1:{port}"], 403),
        ([f"127.0.0.1:{port}", "evil.example"], 403),
        (["evil.example", f"127.0.0.1:{port}"], 403),
        (["127.0.0.1"], 403),
        ([f"127.0.0.1:{port + 1}"], 403),
        ([f"evil@127.0.0.1:{port}"], 403),
        ([f"127.0.0.1:{port}.evil.example"], 403),
        ([""], 403),
    ]
    for names, status in hosts:
        got, _, content = answered(server, request(server, *(f"Host: {name}" for name in names), host=False))
        assert got == status, names
        if status == 403:
            assert f"refused: expected one Host header, 127.0.0.1:{port}" in json.loads(content)["error"]


def test_an_origin_is_compared_with_its_scheme(server: Any) -> None:
    own = f"127.0.0.1:{server.server_port}"
    origins: list[tuple[list[str], int]] = [
        ([], 200),
        ([f"http://{own}"], 200),
        ([own], 403),
        ([f"https://{own}"], 403),
        ([f"ftp://http://{own}"], 403),
        ([f"http://{own}/"], 403),
        (["null"], 403),
        ([""], 403),
        (["http://127.0.0.1"], 403),
        ([f"http://localhost:{server.server_port}"], 403),
        (["http://evil.example"], 403),
        ([f"http://{own}", f"http://{own}"], 403),
    ]
    for names, status in origins:
        got, _, content = answered(server, request(server, *(f"Origin: {name}" for name in names)))
        assert got == status, names
        if status == 403:
            assert f"refused: expected no Origin header, or http://{own}" in json.loads(content)["error"]


def test_requests_that_other_sites_start_are_refused(server: Any) -> None:
    for site, status in (("same-origin", 200), ("none", 200), ("same-site", 403), ("cross-site", 403), ("", 403)):
        got, _, content = answered(server, request(server, f"Sec-Fetch-Site: {site}"))
        assert got == status, site
        if status == 403:
            assert "refused: expected a request of its own page; open http://127.0.0.1:" in json.loads(content)["error"]
    assert answered(server, request(server, "Sec-Fetch-Site: none", "Sec-Fetch-Site: none"))[0] == 403


def test_a_body_has_one_length(server: Any) -> None:
    post, lengths = "POST /classify HTTP/1.1", ("Content-Length: 2", "Content-Length: 4")
    assert answered(server, request(server, *lengths, line=post, body=b"{}"))[0] == 411
    assert answered(server, request(server, lengths[0], "Transfer-Encoding: chunked", line=post, body=b"{}"))[0] == 411


@pytest.mark.parametrize("what", ["body", "headers"])
def test_a_client_that_sends_a_byte_at_a_time_is_cut_off(server: Any, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    monkeypatch.setattr(draw, "DEADLINE", 1.75)  # while it waits, not while it sends
    head = request(server, "Content-Length: 1000", line="POST /classify HTTP/1.1")
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=0.5) as connection:
        connection.sendall(head if what == "body" else head[:-2] + b"X-Slow: ")
        answer, sent = None, 0
        while answer is None:
            sent += 1
            assert sent < 900, "it waits for all of them"
            try:
                connection.sendall(b"1")
                answer = connection.recv(65536)
            except TimeoutError:  # which each byte waits for
                continue
            except (BrokenPipeError, ConnectionResetError):
                answer = b""
        connection.settimeout(10)
        with contextlib.suppress(ConnectionResetError):  # headers and content may come one after the other
            while answer and (more := connection.recv(65536)):
                answer += more
    assert sent > 1
    if what == "body":
        status, _, content = parsed(answer)
        assert status == 408
        assert "expected 1000 bytes within 1.75 seconds" in json.loads(content)["error"]
    else:
        assert answer == b""
    assert ask(server, "GET", "/")[0] == 200


def test_two_hundred_requests_at_once_are_all_answered(server: Any) -> None:
    busy = draw._Server(0, server.board)  # nobody accepts yet: all of them wait in the queue
    connections = [socket.create_connection(("127.0.0.1", busy.server_port), timeout=60) for _ in range(200)]
    body = json.dumps({"pixels": [0] * SIDE**2}).encode()
    try:
        for i, connection in enumerate(connections):
            post = request(busy, f"Content-Length: {len(body)}", line="POST /classify HTTP/1.1", body=body)
            connection.sendall(post if i % 10 == 0 else request(busy))
        for running in started(busy):
            assert running is busy
            assert [parsed(received(connection))[0] for connection in connections] == [200] * 200
    finally:
        for connection in connections:
            connection.close()


def test_it_listens_on_the_loopback_address_only(server: Any) -> None:
    assert server.server_address[0] == "127.0.0.1"


def test_a_drawing_is_centered_as_the_data_set_is() -> None:
    pixels = np.zeros((SIDE, SIDE), np.uint8)
    pixels[5:45, 80:90] = 255  # a stroke in a corner
    image = as_input(pixels, (1, 28, 28))
    mass = image[0] / image.sum()
    rows, columns = (mass.sum(1) * torch.arange(28)).sum(), (mass.sum(0) * torch.arange(28)).sum()
    assert (float(rows), float(columns)) == pytest.approx((13.5, 13.5), abs=0.6)
    assert int((image[0].sum(1) > 0).sum()) == 20
    assert as_input(pixels, (3, 32, 32)).shape == (3, 32, 32)
    assert float(as_input(np.zeros((SIDE, SIDE), np.uint8), (1, 28, 28)).sum()) == 0


def test_drawing_needs_a_run() -> None:
    with pytest.raises(ConfigError, match="draw expected at least one run, got none; pass the folder of a run"):
        make_server([])


def test_a_drawing_is_read_strictly() -> None:
    pixels = parse_drawing(json.dumps({"pixels": list(range(256)) * 49}).encode())
    assert pixels.shape == (SIDE, SIDE)
    assert pixels.flat[255] == 255
    with pytest.raises(DataError, match="expected"):
        parse_drawing(b"3")
