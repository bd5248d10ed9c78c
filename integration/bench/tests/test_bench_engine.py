"""What the engine's server is asked beside completions."""

import http.server
import threading
from pathlib import Path

import pytest
from environment import Environment
from processes import Engine


@pytest.fixture
def engine(tmp_path):
    """Return an engine whose server gives the answers in `said`, the last of them again and again."""
    said = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            status, body = said.pop(0) if len(said) > 1 else said[0]
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    one = Engine(Environment(tmp_path, Path("python")), Path("model"), tmp_path / "log")
    one.port, one.said = server.server_port, said
    yield one
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("body", [b"", b'{"success":true}'])
def test_a_prefix_cache_is_forgotten(engine, body):
    engine.said += [(200, body)]
    engine.reset_prefix_cache(0)


def test_a_prefix_cache_that_is_still_held_is_asked_to_be_forgotten_again(engine):
    engine.said += [(200, b'{"success": false}'), (200, b'{"success":true}')]
    engine.reset_prefix_cache()


@pytest.mark.parametrize("answer", [(200, b'{"success":false}'), (500, b"")])
def test_nothing_goes_on_with_a_prefix_cache_that_is_not_forgotten(engine, answer):
    engine.said += [answer]
    with pytest.raises(RuntimeError, match="reset_prefix_cache"):
        engine.reset_prefix_cache(0)
